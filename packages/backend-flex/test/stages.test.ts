import { runOnWorld } from "@mosaic/conformance";
import { MultiAxisAttention, randn } from "@mosaic/core";
import { expect, test, vi } from "vitest";
import { flex } from "../src/index.ts";
import { makeWorld } from "../../../vitest.world.ts";

test("the first two stages are posted before the local rows are attended to, each other one when a buffer is free", async () => {
  await runOnWorld(makeWorld, { size: 2 }, async (ctx) => {
    const calls: string[] = [];
    const group = ctx.mesh.group("sp");
    const { groupCast } = group;
    vi.spyOn(group, "groupCast").mockImplementation((...args) => {
      calls.push("post");
      return groupCast.apply(group, args);
    });
    const { kernels } = ctx.device;
    const { attend } = kernels;
    vi.spyOn(kernels, "attend").mockImplementation((...args) => {
      calls.push("attend");
      return attend.apply(kernels, args);
    });
    try {
      using attn = new MultiAxisAttention(ctx, {
        embedDim: 16,
        numHeads: 2,
        attentionAxis: 1,
        backend: flex({ stages: 4 }),
      });
      using x = randn(ctx, [1, 16, 16]);
      using out = attn.forward(x);
      await out.read();
    } finally {
      vi.restoreAllMocks();
    }
    expect(calls).toEqual(["post", "post", "attend", "attend", "post", "attend", "post", "attend", "attend"]);
  });
});
