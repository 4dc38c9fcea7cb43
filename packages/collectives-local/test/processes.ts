import { createHash } from "node:crypto";
import { tmpdir, userInfo } from "node:os";
import { join } from "node:path";
import type { Job } from "@mosaic/conformance";
import { bundled } from "../../../vitest.program.ts";

/** Program of each rank. */
export const script: string = await bundled(new URL("fixtures/rank.ts", import.meta.url));

/** Socket paths of the agents of this file's jobs. */
export const sockets: string[] = [];

/**
 * Returns the environment that a launcher sets for the ranks of a job, but without an agent: the first rank starts one.
 */
export async function openJob(size: number): Promise<Job> {
  const run = `test-${process.pid}-${sockets.length}`;
  const { uid } = userInfo();
  const name = createHash("sha256").update(JSON.stringify([JSON.stringify([run, 0]), uid]));
  sockets.push(join(tmpdir(), `mosaic-${uid}`, name.digest("hex").slice(0, 32)));
  return {
    env: (rank) => ({
      RANK: String(rank),
      XDG_RUNTIME_DIR: "",
      WORLD_SIZE: String(size),
      LOCAL_WORLD_SIZE: String(size),
      MASTER_ADDR: "127.0.0.1",
      MASTER_PORT: "29500",
      MOSAIC_RUN_ID: run,
      MOSAIC_ATTEMPT: "0",
    }),
    async [Symbol.asyncDispose]() {},
  };
}
