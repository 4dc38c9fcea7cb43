// Measures the fraction of the quickstart's communication that is hidden behind compute, with ranks on two hosts.
// --tokens is the number per rank, --ranks the number per host. As root:
//
// bash scripts/hosts.sh 2 node --import tsx apps/quickstart/bench/overlap.mjs [--tokens 8192] [--ranks 1] [--heads 2]
import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { overlapFraction } from "../src/timeline.ts";

const numberOption = (value) => ({ type: "string", default: String(value) });
const { values } = parseArgs({
  options: { tokens: numberOption(8192), ranks: numberOption(1), heads: numberOption(2) },
});
const [tokens, ranks, numHeads] = [values.tokens, values.ranks, values.heads].map(Number);
const NUM_HOSTS = 2;
const resolvePath = (path) => fileURLToPath(new URL(`../../../${path}`, import.meta.url));
const directory = mkdtempSync(join(tmpdir(), "mosaic-overlap-"));
process.on("exit", () => rmSync(directory, { recursive: true }));
const tokenPath = join(directory, "token");
writeFileSync(tokenPath, randomBytes(32).toString("hex"), { mode: 0o600 });

for (const isCausal of [false, true]) {
  const worldSize = NUM_HOSTS * ranks;
  const settings = {
    ...{
      tokens: tokens * worldSize,
      ranks: worldSize,
      backend: "ring",
      mask: { name: isCausal ? "causal" : "full" },
      placement: isCausal ? "zigzag" : "contiguous",
      dtype: "float32",
      backward: true,
      numHeads,
      headDim: 64,
    },
    ...{ seed: 0, json: false, svgPath: "", dispatchPicturePath: "", predictionPicturePath: "" },
  };
  const job = { settings, directory, totalWork: { forward: worldSize, backward: worldSize } };
  await Promise.all(Array.from({ length: NUM_HOSTS }, (_, host) => runOnHost(host, job)));
  const reports = Array.from({ length: worldSize }, (_, rank) =>
    JSON.parse(readFileSync(join(directory, `report.${rank}.json`), "utf8")),
  );
  const hiddenFraction = overlapFraction(reports);
  console.log(
    `${NUM_HOSTS} hosts × ${ranks} ranks, ${tokens} tokens per rank${isCausal ? ", causal" : ""}: ${(100 * hiddenFraction).toFixed(1)} % of communication hidden behind compute`,
  );
}

function runOnHost(host, job) {
  const nodeArgs = [
    "-N",
    `${NUM_HOSTS}`,
    "--node-rank",
    `${host}`,
    "--rdzv-endpoint",
    "10.77.0.10:29400",
    "-n",
    `${ranks}`,
  ];
  const program = [resolvePath("apps/quickstart/dist/rank.js"), JSON.stringify(job)];
  const args = [
    "netns",
    "exec",
    `n${host}`,
    process.execPath,
    resolvePath("packages/launcher/dist/cli.js"),
    ...nodeArgs,
    ...program,
  ];
  // These hosts are on one machine. Between machines, UCX detects that it cannot share memory and needs no setting.
  const env = { ...process.env, MOSAIC_TOKEN_FILE: tokenPath, MOSAIC_THREADS: "1", UCX_TLS: "tcp" };
  const child = spawn("ip", args, { env, stdio: ["ignore", "ignore", "inherit"] });
  return new Promise((resolve, reject) =>
    child.on("close", (code) =>
      code === 0 ? resolve() : reject(new Error(`host ${host}: expected exit code 0, received ${code}`)),
    ),
  );
}
