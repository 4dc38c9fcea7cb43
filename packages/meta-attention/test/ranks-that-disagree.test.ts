import { CollectiveMismatchError, type Context, contiguous, masks, randn } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import {
  HierarchicalMetaAttention,
  type HierarchicalMetaAttentionOptions,
  type MetaForwardOptions,
} from "../src/index.ts";
import { makeWorld } from "../../../vitest.world.ts";

type Options = Partial<HierarchicalMetaAttentionOptions>;
type Call = (ctx: Context, options: Options, forward: MetaForwardOptions) => Promise<void>;

const sizes = { embedDim: 8, numHeads: 2, summaryDim: 4, metaHeads: 2, topK: 1, chunksPerRank: 2 } as const;
const [firstChoice, secondChoice, emptyChoice] = [[[[1], [0], [3], [2]]], [[[1], [0], [3], []]], [[[], [], [], []]]];

/** Runs a forward, then a barrier, for ranks that expect no further messages. */
const forward: Call = async (ctx, options, call) => {
  using module = new HierarchicalMetaAttention(ctx, { ...sizes, ...options });
  using x = randn(ctx, [1, (call.sequenceLength ?? 16) - 8, 8]);
  using result = await module.forward(x, { sequenceLength: 16, ...call });
  await result.out.read();
  ctx.mesh.group("sp").barrier().wait();
  await ctx.device.stream.synchronize();
};

/** Returns the errors of both ranks in a world of two ranks with different options. */
async function collectErrors(
  rankInputs: readonly { options?: Options; call?: MetaForwardOptions }[],
  callForward: Call = forward,
) {
  const contexts = await makeWorld(2, { wrapDevice: (device) => device });
  const outcomes = await Promise.allSettled(
    contexts.map((ctx, rank) => callForward(ctx, rankInputs[rank]!.options ?? {}, rankInputs[rank]!.call ?? {})),
  );
  await Promise.allSettled(contexts.map((ctx) => ctx.close()));
  return outcomes.map((end) => {
    expect(end.status).toBe("rejected");
    const { reason } = end as PromiseRejectedResult;
    expect(reason).toBeInstanceOf(CollectiveMismatchError);
    return (reason as Error).message;
  });
}

describe("errors of ranks that disagree", () => {
  test.each<readonly [string, readonly [Options, Options], readonly [string, string]]>([
    ["topK", [{ topK: 1 }, { topK: 2 }], ["top 1 of 4 chunks, ", "top 2 of 4 chunks, "]],
    [
      "chunks on each rank",
      [{}, { chunksPerRank: 4 }],
      [" of 4 chunks, 2 chunks per rank", " of 8 chunks, 4 chunks per rank"],
    ],
    ["the mask", [{}, { causal: true }], ["mask full 0:16 × 0:16, ", "mask causal 0:16 × 0:16, "]],
    [
      "a mask that lets no rank see another's keys",
      [{ mask: masks.documents([8, 8]) }, { mask: masks.documents([4, 4, 8]) }],
      ["mask full 0:8 × 0:8 + full 8:16 × 8:16, ", "mask full 0:4 × 0:4 + full 4:8 × 4:8 + full 8:16 × 8:16, "],
    ],
    ["the placement", [{}, { placement: "striped" }], ["rows 16: 0:8 | 8:16, ", "rows 16: 0:16:2 | 1:17:2, "]],
    ["the scale", [{ scale: 0.5 }, { scale: 0.25 }], ["scale 0.5, ", "scale 0.25, "]],
    ["how it is combined", [{ combine: "exact" }, { combine: "soft" }], [" exact, ", " soft, "]],
  ])("state both values: %s", async (_, [usualInput, oddInput], expectedTexts) => {
    for (const message of await collectErrors([{ options: usualInput }, { options: oddInput }])) {
      for (const expectedText of expectedTexts) expect(message).toContain(expectedText);
      expect(message).toMatch(/meta\(sp\) routing: .*meta\(sp\) routing: /s);
      expect(message).toContain("all ranks of a group must call the same collectives in the same order");
    }
  });

  test("state both sequence lengths", async () => {
    const call = { sequenceLength: 17 };
    const messages = await collectErrors([{}, { call, options: { placement: contiguous([8, 9]) } }]);
    for (const message of messages) {
      expect(message).toContain("rows 16: 0:8 | 8:16");
      expect(message).toContain("rows 17: 0:8 | 8:17");
    }
  });

  test("state both lists of chosen chunks if no chunk has to be transferred", async () => {
    for (const message of await collectErrors([
      { call: { chosen: firstChoice } },
      { call: { chosen: secondChoice } },
    ])) {
      expect(message).toContain("chunks [1] [0] [3] [2] (4 lists, ");
      expect(message).toContain("chunks [1] [0] [3] [] (4 lists, ");
    }
  });

  test("name a backward that only one rank runs", async () => {
    const callMetaAttention: Call = async (ctx) => {
      using module = new HierarchicalMetaAttention(ctx, { ...sizes, certificate: false });
      using x = randn(ctx, [1, 8, 8]);
      using result = await module.forward(x, { chosen: firstChoice });
      if (ctx.rank === 0) result.out.sum().backward();
      ctx.mesh.group("sp").barrier().wait();
      await ctx.device.stream.synchronize();
    };
    const messages = await collectErrors([{}, {}], callMetaAttention);
    for (const message of messages) expect(message).toMatch(/meta\(sp\) backward of chunks \[1\] \[0\] \[3\] \[2\]/);
  });

  test("are thrown on close at the latest", async () => {
    const contexts = await makeWorld(2, { wrapDevice: (device) => device });
    const outcomes = await Promise.allSettled(
      contexts.map(async (ctx, rank) => {
        const module = new HierarchicalMetaAttention(ctx, { ...sizes, certificate: false });
        const result = await module.forward(randn(ctx, [1, 8, 8]), { chosen: rank === 0 ? emptyChoice : firstChoice });
        await result.out.read();
      }),
    );
    const closeOutcomes = await Promise.allSettled(contexts.map((ctx) => ctx.close()));
    const rejectedOutcomes = [...outcomes, ...closeOutcomes].filter((each) => each.status === "rejected");
    expect(rejectedOutcomes.length).toBeGreaterThan(0);
    for (const { reason } of rejectedOutcomes) {
      expect(String(reason)).toContain("chunks [] [] [] [] (4 lists, ");
      expect(String(reason)).toContain("chunks [1] [0] [3] [2] (4 lists, ");
    }
  });
});

test("equal masks and chunk lists that every rank creates anew cause no mismatch error", async () => {
  const contexts = await makeWorld(2, { wrapDevice: (device) => device });
  await Promise.all(
    contexts.map(async (ctx) => {
      for (let step = 0; step < 4; step++) {
        using module = new HierarchicalMetaAttention(ctx, {
          ...sizes,
          mask: masks.documents([5, 11]),
          useCheckpoint: step % 2 === 0,
          maxMissedMass: 0.01,
        });
        using x = randn(ctx, [1, 8, 8]);
        x.requiresGrad = true;
        using result = await module.forward(x);
        result.out.sum().backward();
        expect((await x.grad!.read()).every(Number.isFinite)).toBe(true);
      }
    }),
  );
  await Promise.all(contexts.map((ctx) => ctx.close()));
});
