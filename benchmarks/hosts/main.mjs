// Batches of messages between two hosts over UCX beside plain sockets, in turns. Hosts are network namespaces, so as root:
//
//   bash scripts/hosts.sh 4 \
//     node benchmarks/hosts/main.mjs [--turns 7] [libucp.so.0 ...]      each library is measured; default: the one that is found
import { execFile, execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { parseArgs, promisify } from "node:util";

const run = promisify(execFile);
const { values, positionals } = parseArgs({
  options: { turns: { type: "string", default: "7" } },
  allowPositionals: true,
});
const batch = { messages: 8, bytes: 8 * 2 ** 20, rounds: 7 };
const here = import.meta.dirname;
const launcher = join(
  dirname(createRequire(import.meta.url).resolve("@mosaic/launcher/package.json")),
  "bin/mosaic-run.js",
);
const addressOf = (host) => `10.77.0.1${host}`;
const work = mkdtempSync(join(tmpdir(), "mosaic-hosts-"));
process.on("exit", () => rmSync(work, { recursive: true }));

const sockets = join(work, "sockets");
execFileSync("g++", ["-O2", "-o", sockets, join(here, "sockets.cc")]);
writeFileSync(join(work, "token"), randomBytes(32).toString("hex"), { mode: 0o600 });

/** What a command prints on the first of two hosts, on which it runs at once. */
async function onHosts(commandOf, env = {}) {
  const [first] = await Promise.all(
    [0, 1].map((host) =>
      run("ip", ["netns", "exec", `n${host}`, ...commandOf(host)], {
        env: { ...process.env, ...env },
        timeout: 120_000,
      }),
    ),
  );
  return first.stdout;
}

const median = (numbers) => numbers.toSorted((a, b) => a - b)[numbers.length >> 1];
/** The first batch warms up. */
const typical = (seconds) => median(seconds.slice(1));

let port = 29_500;
async function timeSockets() {
  const { messages, bytes, rounds } = batch;
  const rest = [port++, messages * bytes, rounds].map(String);
  const printed = await onHosts((host) => [sockets, addressOf(0), rest[0], `${host}`, ...rest.slice(1)]);
  return typical(printed.trim().split("\n").map(Number));
}

async function timeUcx(library) {
  const command = (host) => [process.execPath, launcher, "-N", "2", "-n", "1", "--node-rank", `${host}`];
  const rendezvous = ["--rdzv-endpoint", `${addressOf(0)}:${port++}`, "--log-prefix", ""];
  const entry = [join(here, "rank.mjs"), JSON.stringify(batch)];
  const env = {
    MOSAIC_TOKEN_FILE: join(work, "token"),
    UCX_TLS: "tcp,self",
    ...(library && { MOSAIC_UCX_LIBRARY: library }),
  };
  const printed = await onHosts((host) => [...command(host), ...rendezvous, ...entry], env);
  const { batches, waiting } = JSON.parse(/\{.*\}/.exec(printed)[0]);
  return { seconds: typical(batches), waiting };
}

const libraries = positionals.length > 0 ? positionals : [""];
const turns = new Map(libraries.map((library) => [library, []]));
for (let turn = 0; turn < Number(values.turns); turn++) {
  const plain = await timeSockets();
  for (const library of libraries) {
    const { seconds, waiting } = await timeUcx(library);
    turns.get(library).push({ ratio: plain / seconds, waiting, rate: (batch.messages * batch.bytes) / seconds / 1e9 });
  }
}
for (const [library, all] of turns) {
  const ratios = all.map(({ ratio }) => ratio).toSorted((a, b) => a - b);
  console.log(
    `${library || "UCX"}: ${median(ratios).toFixed(3)} × plain sockets [${ratios[0].toFixed(3)} … ${ratios.at(-1).toFixed(3)}], ` +
      `${median(all.map(({ rate }) => rate)).toFixed(2)} GB/s each way; ` +
      `CPU use of a waiting rank: ${(100 * median(all.map(({ waiting }) => waiting))).toFixed(2)} % of a core`,
  );
}
