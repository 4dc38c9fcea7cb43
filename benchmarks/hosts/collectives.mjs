// Times allGather, broadcast, reduceScatter, the same in two levels (within each host, then between hosts) and
// allReduce over the ranks of up to four hosts, with builds of the native code in turns. Hosts are network namespaces, so run
// as root:
//
//   bash scripts/hosts.sh 4 node benchmarks/hosts/collectives.mjs [--turns 7] [--ranks 2] [--rate 1gbit] [--delay 100us] \
//     [--bytes 1024,65536,16777216] [directory ...]      values of MOSAIC_PREBUILDS; default: the one of this repository
//
// --ranks is the number of ranks on each of four hosts, or one number for each host: 3,2,1. --rate limits what each host
// sends and receives.
import { execFile, execFileSync } from "node:child_process";
import { join } from "node:path";
import { parseArgs, promisify } from "node:util";
import { hostAddress, launcherPath, median, tokenFile } from "./setup.mjs";

const run = promisify(execFile);
const text = (value) => ({ type: "string", default: value });
const { values, positionals } = parseArgs({
  options: {
    ...{ turns: text("7"), ranks: text("2"), rate: text(""), delay: text("") },
    bytes: text("1024,65536,1048576,16777216"),
  },
  allowPositionals: true,
});
const counts = values.ranks.split(",");
const ranksByHost = counts.length > 1 ? counts : Array.from({ length: 4 }, () => counts[0]);
const numHosts = ranksByHost.length;
const sizes = values.bytes.split(",").map(Number);

/** Limits both directions of each host's cable. */
function limitLinks() {
  const limit = values.delay
    ? ["netem", ...(values.rate ? ["rate", values.rate] : []), "delay", values.delay, "limit", "10000"]
    : ["tbf", "rate", values.rate, "burst", "256kb", "latency", "100ms"];
  for (let host = 0; host < numHosts; host++) {
    execFileSync("ip", ["netns", "exec", `n${host}`, "tc", "qdisc", "add", "dev", "eth0", "root", ...limit]);
    execFileSync("tc", ["qdisc", "add", "dev", `v${host}`, "root", ...limit]);
  }
}
if (values.rate || values.delay) limitLinks();

let port = 29_500;
/** Returns the result of rank 0: seconds by operation and size. */
async function timeCollectives(prebuilds) {
  const env = {
    ...process.env,
    ...{ MOSAIC_TOKEN_FILE: tokenFile, MOSAIC_THREADS: "1", UCX_TLS: "tcp,self" },
    ...(prebuilds && { MOSAIC_PREBUILDS: prebuilds }),
  };
  const endpoint = `${hostAddress(0)}:${port++}`;
  const outputs = await Promise.all(
    ranksByHost.map((count, host) => {
      const node = ["-N", `${numHosts}`, "-n", count, "--node-rank", `${host}`, "--rdzv-endpoint", endpoint];
      const entry = [join(import.meta.dirname, "collectives-rank.mjs"), JSON.stringify(sizes)];
      const args = [process.execPath, launcherPath, ...node, "--log-prefix", "", ...entry];
      return run("ip", ["netns", "exec", `n${host}`, ...args], { env, timeout: 300_000 });
    }),
  );
  return JSON.parse(/\{.*\}/.exec(outputs[0].stdout)[0]);
}

const builds = positionals.length > 0 ? positionals : [""];
const turnsByBuild = new Map(builds.map((build) => [build, []]));
for (let turn = 0; turn < Number(values.turns); turn++) {
  // Every other turn is in reverse order.
  for (const build of turn % 2 === 0 ? builds : builds.toReversed()) {
    turnsByBuild.get(build).push(await timeCollectives(build));
  }
}
const format = (seconds) => (1e3 * seconds).toFixed(3);
console.log(`ranks by host: ${ranksByHost}; milliseconds, median [least … most] of ${values.turns} turns`);
for (const key of Object.keys(turnsByBuild.get(builds[0])[0])) {
  const columns = builds.map((build) => {
    const seconds = turnsByBuild.get(build).map((turn) => turn[key]);
    return `${format(median(seconds))} [${format(Math.min(...seconds))} … ${format(Math.max(...seconds))}]`.padEnd(34);
  });
  console.log(`${key.padEnd(24)} ${columns.join(" ")}`);
}
