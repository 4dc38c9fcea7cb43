import { fileURLToPath } from "node:url";
import { type RankProcess, startRank as startProcess } from "@mosaic/conformance";
import { build } from "tsup";

// Plain JavaScript, beside the prebuilt addons as dist/ is: eight processes start faster without a loader each.
const outDir = fileURLToPath(new URL("../build/", import.meta.url));
const entry = { rank: fileURLToPath(new URL("fixtures/rank.ts", import.meta.url)) };
await build({ entry, outDir, format: "esm", target: "node20", config: false, silent: true });
const script = `${outDir}rank.js`;

export function startRank(scenario: string, env: Readonly<Record<string, string>>): RankProcess {
  return startProcess(script, scenario, env);
}

let jobs = 0;

/** What a launcher would set for the ranks of one job. */
export function job(size: number, more: Record<string, string> = {}): (rank: number) => Record<string, string> {
  const run = `test-${process.pid}-${jobs++}`;
  return (rank) => ({
    RANK: String(rank),
    WORLD_SIZE: String(size),
    LOCAL_WORLD_SIZE: String(size),
    MASTER_ADDR: "127.0.0.1",
    MASTER_PORT: "29500",
    MOSAIC_RUN_ID: run,
    MOSAIC_ATTEMPT: "0",
    ...more,
  });
}

export function startRanks(size: number, scenario: string, more: Record<string, string> = {}): RankProcess[] {
  const env = job(size, more);
  return Array.from({ length: size }, (_, rank) => startRank(scenario, env(rank)));
}
