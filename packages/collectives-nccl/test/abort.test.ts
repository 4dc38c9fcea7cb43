import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { emulatedLibraries } from "./emulated.ts";

// An operation of the world never completes, and one of a split group is queued behind it on the same stream. If the
// split group's communicator were aborted first, the abort would wait forever.
test("communicators that share a stream are aborted together", async () => {
  const resolveModule = (module: string): string => JSON.stringify(import.meta.resolve(module));
  const script = `const { world } = await import(${resolveModule("../dist/index.js")});
    const { cuda } = await import(${resolveModule("@mosaic/kernels-cuda")});
    const { full } = await import(${resolveModule("@mosaic/core")});
    const contexts = await world(2, { device: () => cuda({ index: 0 }), timeout: 1 });
    const parts = await Promise.all(contexts.map((ctx) => ctx.world.split(0)));
    const xs = contexts.map((ctx) => full(ctx, [4], 1));
    for (const ctx of contexts) ctx.world.allReduce(xs[ctx.rank]).wait();
    for (const ctx of contexts) parts[ctx.rank].allReduce(xs[ctx.rank]).wait();
    const errors = await Promise.all(xs.map((x) => x.read().then(() => "nothing", ({ name }) => name)));
    await Promise.all(contexts.map((ctx) => ctx.close()));
    process.stdout.write(JSON.stringify(errors));`;
  // The first three launches are the warm-up; the fourth hangs.
  const env = { ...process.env, ...emulatedLibraries, MOSAIC_EMULATED_NCCL_HANG: "4" };
  const node = ["--input-type=module", "--eval", script];
  const { stdout } = await promisify(execFile)(process.execPath, node, { env, timeout: 30_000 });
  expect(JSON.parse(stdout)).toEqual(["CollectiveTimeoutError", "CollectiveTimeoutError"]);
});
