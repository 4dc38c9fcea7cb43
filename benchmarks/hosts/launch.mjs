// Measures the time from the command to the first output line of a rank, on one host and on two. Hosts are network
// namespaces, so run as root:
//
//   bash scripts/hosts.sh 2 node benchmarks/hosts/launch.mjs [--turns 11]
import { execFile } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { formatSpread, hostAddress, launcherPath, tokenFile, workDirectory } from "./setup.mjs";

const { values } = parseArgs({ options: { turns: { type: "string", default: "11" } } });
const entry = join(workDirectory, "entry.mjs");
writeFileSync(entry, 'console.log("ready");\n');

/** Returns the seconds until any of the commands prints its first line on stdout. Resolves when all have exited. */
async function timeFirstLine(commands) {
  const startTime = performance.now();
  let firstLineTime;
  const runs = commands.map(
    ([program, ...args]) =>
      new Promise((resolve, reject) => {
        const env = { ...process.env, MOSAIC_TOKEN_FILE: tokenFile };
        const child = execFile(program, args, { env, timeout: 60_000 }, (error) => (error ? reject(error) : resolve()));
        child.stdout.once("data", () => (firstLineTime ??= performance.now()));
      }),
  );
  await Promise.all(runs);
  return (firstLineTime - startTime) / 1e3;
}

let port = 29_700;
const createCommandsByCase = {
  "Node.js alone": () => [[process.execPath, entry]],
  "4 ranks on one host": () => [[process.execPath, launcherPath, "-n", "4", entry]],
  "2 hosts of 2 ranks": () => {
    const endpoint = `${hostAddress(0)}:${port++}`;
    return [0, 1].map((host) => [
      ...["ip", "netns", "exec", `n${host}`, process.execPath, launcherPath, "-N", "2", "-n", "2"],
      ...["--node-rank", `${host}`, "--rdzv-endpoint", endpoint, entry],
    ]);
  },
};
const secondsByCase = Object.fromEntries(Object.keys(createCommandsByCase).map((name) => [name, []]));
for (let turn = 0; turn < Number(values.turns); turn++) {
  for (const [name, createCommands] of Object.entries(createCommandsByCase))
    secondsByCase[name].push(await timeFirstLine(createCommands()));
}
for (const [name, turnSeconds] of Object.entries(secondsByCase)) {
  console.log(`${name.padEnd(20)} ${formatSpread(turnSeconds, " s")}`);
}
