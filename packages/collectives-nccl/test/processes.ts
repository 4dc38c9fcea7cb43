import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Job } from "@mosaic/conformance";
import { StoreServer } from "@mosaic/launcher";
import { build } from "tsup";
import "./emulated.ts";

// Plain JavaScript, beside the prebuilt addons as dist/ is: processes start faster without a loader each.
const outDir = fileURLToPath(new URL("../build/", import.meta.url));
const entry = { rank: fileURLToPath(new URL("fixtures/rank.ts", import.meta.url)) };
await build({ entry, outDir, format: "esm", target: "node20", external: [/^@mosaic\//], config: false, silent: true });
/** What each rank runs. */
export const script: string = `${outDir}rank.js`;

let jobs = 0;

/** A job's store, and what a launcher would put into the environment of its ranks. */
export async function openJob(size: number): Promise<Job> {
  const runId = `test-${process.pid}-${jobs++}`;
  const store = await StoreServer.listen({ runId });
  const folder = mkdtempSync(join(tmpdir(), "mosaic-nccl-"));
  const tokenFile = join(folder, "token");
  writeFileSync(tokenFile, `${store.token}\n`);
  return {
    env: (rank) => ({
      RANK: String(rank),
      LOCAL_RANK: String(rank),
      WORLD_SIZE: String(size),
      LOCAL_WORLD_SIZE: String(size),
      MOSAIC_STORE: store.address,
      MOSAIC_TOKEN_FILE: tokenFile,
      MOSAIC_RUN_ID: runId,
      MOSAIC_ATTEMPT: "0",
      MOSAIC_NODE_ADDR: store.host,
    }),
    async [Symbol.asyncDispose]() {
      await store.close();
      rmSync(folder, { recursive: true });
    },
  };
}
