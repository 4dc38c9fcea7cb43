import { runOnWorld } from "@mosaic/conformance";
import { masks, MultiAxisAttention, randn } from "@mosaic/core";
import { expect, test } from "vitest";
import { flex } from "../src/index.ts";
import { makeWorld } from "../../../vitest.world.ts";

test("every step frees its memory immediately, without garbage collection", async () => {
  await runOnWorld(makeWorld, { size: 3 }, async (ctx) => {
    const options = { embedDim: 16, numHeads: 4, numKvHeads: 2, attentionAxis: 1, mask: masks.causal() };
    using attn = new MultiAxisAttention(ctx, { ...options, backend: flex({ stages: 2, queriesTravel: true }) });
    using x = randn(ctx, [1, 6, 16]);
    x.requiresGrad = true;
    const memoryBytes: number[] = [];
    for (let step = 0; step < 200; step++) {
      using out = attn.forward(x);
      using dOut = x.detach();
      out.backward(dOut);
      attn.zeroGrad();
      x.grad!.dispose();
      x.grad = null;
      await ctx.device.stream.synchronize();
      const { allocated, reserved } = ctx.device.memory();
      memoryBytes.push(allocated, reserved);
    }
    expect(new Set(memoryBytes.slice(20)).size).toBe(2);
  });
});
