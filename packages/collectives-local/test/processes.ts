import { createHash } from "node:crypto";
import { tmpdir, userInfo } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Job } from "@mosaic/conformance";
import { build } from "tsup";

// Plain JavaScript, beside the prebuilt addons as dist/ is: eight processes start faster without a loader each.
const outDir = fileURLToPath(new URL("../build/", import.meta.url));
const entry = { rank: fileURLToPath(new URL("fixtures/rank.ts", import.meta.url)) };
await build({ entry, outDir, format: "esm", target: "node20", external: [/^@mosaic\//], config: false, silent: true });
/** What each rank runs. */
export const script: string = `${outDir}rank.js`;

/** The sockets of the agents of this file's jobs. */
export const sockets: string[] = [];

/** What a launcher would set for the ranks of one job, but for its agent: the first rank starts one. */
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
