import type { Job } from "@mosaic/conformance";
import { bundled } from "../../../vitest.program.ts";
import "./emulated.ts";

/** Program of each rank. */
export const script: string = await bundled(new URL("fixtures/rank.ts", import.meta.url));

let jobCount = 0;

/**
 * Returns the environment that a launcher sets for the ranks of a job, but without an agent: the first rank starts one.
 */
export async function openJob(size: number): Promise<Job> {
  const run = `nccl-test-${process.pid}-${jobCount++}`;
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
