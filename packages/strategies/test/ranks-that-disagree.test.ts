import { attention, CollectiveMismatchError, layoutOf, masks, randn } from "@mosaic/core";
import { expect, test } from "vitest";
import { hierarchical } from "../src/index.ts";
import { makeWorld } from "../../../vitest.world.ts";

// Ranks 0 to 2 each share a mesh axis with the rank that differs, or with a rank that shares one with it.
test("one rank with a different mask in a nested mesh causes an error on every rank", async () => {
  const backend = hierarchical({ intraNodeSize: 2 });
  const mesh = backend.meshFor(4);
  const contexts = await makeWorld(4, { wrapDevice: (device) => device, mesh });
  const rankErrors = contexts.map(async (ctx) => {
    const layout = layoutOf({ mesh, axes: backend.axes, length: 16 });
    const x = randn(ctx, [1, 2, 4, 8]);
    const mask = ctx.rank === 3 ? masks.causal() : masks.full();
    try {
      await attention(ctx, x, x, x, { backend, mask, queries: layout, keys: layout }).read();
      for (;;) {
        ctx.world.barrier().wait();
        await ctx.device.stream.synchronize();
      }
    } catch (error) {
      return error as Error;
    }
  });
  for (const error of await Promise.all(rankErrors)) {
    expect(error).toBeInstanceOf(CollectiveMismatchError);
    expect(error.message).toMatch(/: attention by hierarchical: ring\(node, ring\(gpu\)\): .*mask (full|causal) 0:16/);
    expect(error.message).toContain("mask full 0:16 × 0:16");
    expect(error.message).toContain("mask causal 0:16 × 0:16");
  }
  await Promise.all(contexts.map((ctx) => ctx.close()));
});
