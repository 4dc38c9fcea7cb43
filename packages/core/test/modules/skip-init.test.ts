import { expect, test } from "vitest";
import { Linear } from "../../src/modules/linear.ts";
import { CrossAxisAttention } from "../../src/modules/cross-axis-attention.ts";
import { MultiAxisAttention } from "../../src/modules/multi-axis-attention.ts";
import { skipInit } from "../../src/modules/parameters.ts";
import { referenceWorld } from "../reference/index.ts";

test("skipInit creates parameters without communication or random numbers", async () => {
  const contexts = await referenceWorld(2);
  for (const ctx of contexts) {
    const streamBefore = ctx.randomStream;
    const layer = skipInit(() => new Linear(ctx, 4, 3));
    expect(layer.parameters().map(({ requiresGrad, shape }) => [requiresGrad, shape])).toEqual([
      [true, [3, 4]],
      [true, [3]],
    ]);
    expect(ctx.randomStream).toBe(streamBefore);
    expect(ctx.world.traffic().messagesSent).toBe(0);
  }
});

test("skipInit nests, ends when its function returns or throws, and rejects other values", async () => {
  const [ctx] = await referenceWorld(1);
  const countStreams = () => {
    const streamBefore = ctx!.randomStream;
    using _ = new Linear(ctx!, 2, 2);
    return ctx!.randomStream - streamBefore;
  };
  expect(skipInit(() => [skipInit(countStreams), countStreams()])).toEqual([0, 0]);
  expect(() =>
    skipInit(() => {
      throw new RangeError("no");
    }),
  ).toThrow(RangeError);
  expect(countStreams()).toBe(2);
  expect(() => skipInit(3 as never)).toThrow(/skipInit: expected a function, received 3/);
});

test("outBias controls only the bias of the output projection", async () => {
  const [ctx] = await referenceWorld(1);
  const names = (options: object) =>
    new MultiAxisAttention(ctx!, { embedDim: 8, numHeads: 2, attentionAxis: 1, ...options })
      .namedParameters()
      .map(([name]) => name);
  const weights = ["qkv_proj.weight", "out_proj.weight"];
  expect(names({ outBias: false })).toEqual(["qkv_proj.weight", "qkv_proj.bias", "out_proj.weight"]);
  expect(names({ bias: false, outBias: true })).toEqual([...weights, "out_proj.bias"]);
  expect(names({ bias: false })).toEqual(weights);
  const cross = new CrossAxisAttention(ctx!, { embedDim: 8, numHeads: 2, qAxis: 1, kvAxis: 1, outBias: false });
  expect(cross.outProjection.bias).toBe(null);
  expect(cross.qProjection.bias).not.toBe(null);
});
