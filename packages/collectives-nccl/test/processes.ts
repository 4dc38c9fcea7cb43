import { fileURLToPath } from "node:url";
import type { Job } from "@mosaic/conformance";
import { build } from "tsup";
import "./emulated.ts";

// Plain JavaScript, beside the prebuilt addons as dist/ is: processes start faster without a loader each.
const outDir = fileURLToPath(new URL("../build/", import.meta.url));
const entry = { rank: fileURLToPath(new URL("fixtures/rank.ts", import.meta.url)) };
await build({ entry, outDir, format: "esm", target: "node20", external: [/^@mosaic\//], config: false, silent: true });
/** What each rank runs. */
export const script: string = `${outDir}rank.js`;

let jobs = 0;

/** What a launcher would set for the ranks of one job, but for its agent: the first rank starts one. */
export async function openJob(size: number): Promise<Job> {
  const run = `nccl-test-${process.pid}-${jobs++}`;
  return {
    env: (rank) => ({
      RANK: String(rank),
      LOCAL_RANK: String(rank),
      WORLD_SIZE: String(size),
      LOCAL_WORLD_SIZE: String(size),
      MOSAIC_RUN_ID: run,
      MOSAIC_ATTEMPT: "0",
    }),
    async [Symbol.asyncDispose]() {},
  };
}
