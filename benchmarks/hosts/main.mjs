// Compares batches of messages between two hosts over UCX with plain sockets, in turns. Hosts are network namespaces,
// so run as root:
//
//   bash scripts/hosts.sh 4 \
//     node benchmarks/hosts/main.mjs [--turns 7] [libucp.so.0 ...]      each library is measured; default: the one that is found
import { execFile, execFileSync } from "node:child_process";
import { join } from "node:path";
import { parseArgs, promisify } from "node:util";
import { formatSpread, hostAddress, launcherPath, median, tokenFile, workDirectory } from "./setup.mjs";

const run = promisify(execFile);
const { values, positionals } = parseArgs({
  options: { turns: { type: "string", default: "7" } },
  allowPositionals: true,
});
const batch = { messages: 8, bytes: 8 * 2 ** 20, rounds: 7 };
const benchmarkDirectory = import.meta.dirname;

const socketsPath = join(workDirectory, "sockets");
execFileSync("g++", ["-O2", "-o", socketsPath, join(benchmarkDirectory, "sockets.cc")]);

/** Runs a command on both hosts concurrently and returns its output on the first. */
async function runOnHosts(createCommand, env = {}) {
  const [firstOutput] = await Promise.all(
    [0, 1].map((host) =>
      run("ip", ["netns", "exec", `n${host}`, ...createCommand(host)], {
        env: { ...process.env, ...env },
        timeout: 120_000,
      }),
    ),
  );
  return firstOutput.stdout;
}

/** Returns the median without the first batch, which is warm-up. */
const medianWithoutWarmup = (seconds) => median(seconds.slice(1));

let port = 29_500;
async function timeSockets() {
  const { messages, bytes, rounds } = batch;
  const sharedArguments = [port++, messages * bytes, rounds].map(String);
  const output = await runOnHosts((host) => [
    socketsPath,
    hostAddress(0),
    sharedArguments[0],
    `${host}`,
    ...sharedArguments.slice(1),
  ]);
  return medianWithoutWarmup(output.trim().split("\n").map(Number));
}

async function timeUcx(library) {
  const createCommand = (host) => [process.execPath, launcherPath, "-N", "2", "-n", "1", "--node-rank", `${host}`];
  const rendezvousArgs = ["--rdzv-endpoint", `${hostAddress(0)}:${port++}`, "--log-prefix", ""];
  const entryArgs = [join(benchmarkDirectory, "rank.mjs"), JSON.stringify(batch)];
  const env = {
    MOSAIC_TOKEN_FILE: tokenFile,
    UCX_TLS: "tcp,self",
    ...(library && { MOSAIC_UCX_LIBRARY: library }),
  };
  const output = await runOnHosts((host) => [...createCommand(host), ...rendezvousArgs, ...entryArgs], env);
  const { batches: batchSeconds, waiting: waitingCpuShare } = JSON.parse(/\{.*\}/.exec(output)[0]);
  return { seconds: medianWithoutWarmup(batchSeconds), waiting: waitingCpuShare };
}

const libraries = positionals.length > 0 ? positionals : [""];
const turnsByLibrary = new Map(libraries.map((library) => [library, []]));
for (let turn = 0; turn < Number(values.turns); turn++) {
  const socketSeconds = await timeSockets();
  for (const library of libraries) {
    const { seconds, waiting: waitingCpuShare } = await timeUcx(library);
    turnsByLibrary.get(library).push({
      ratio: socketSeconds / seconds,
      waiting: waitingCpuShare,
      gigabytesPerSecond: (batch.messages * batch.bytes) / seconds / 1e9,
    });
  }
}
for (const [library, libraryTurns] of turnsByLibrary) {
  const ratios = libraryTurns.map(({ ratio }) => ratio);
  console.log(
    `${library || "UCX"}: ${formatSpread(ratios, " × plain sockets")}, ` +
      `${median(libraryTurns.map(({ gigabytesPerSecond }) => gigabytesPerSecond)).toFixed(2)} GB/s each way; ` +
      `CPU use of a waiting rank: ${(100 * median(libraryTurns.map(({ waiting }) => waiting))).toFixed(2)} % of a core`,
  );
}
