import { describe, expect, test } from "vitest";
import { attention } from "../../src/attention/attention.ts";
import type { Context } from "../../src/context.ts";
import { fromArray } from "../../src/creation.ts";
import { OptionError } from "../../src/errors.ts";
import { type Mask, masks } from "../../src/index.ts";
import type { PositionEncoding } from "../../src/modules/attention-options.ts";
import { CrossAxisAttention } from "../../src/modules/cross-axis-attention.ts";
import { MultiAxisAttention2D } from "../../src/modules/multi-axis-attention-2d.ts";
import { MultiAxisAttention } from "../../src/modules/multi-axis-attention.ts";
import { randn } from "../../src/random.ts";
import { sum } from "../../src/ops/reduction.ts";
import type { Placement } from "../../src/placement/placement.ts";
import { shard, unshard } from "../../src/placement/shard.ts";
import type { Tensor } from "../../src/tensor.ts";
import { allGatherBackend, referenceWorld } from "../reference/index.ts";

// Shapes: 3 samples of at most 6 tokens, 8 features.

const [B, S, E] = [3, 6, 8];
const lengths = [6, 2, 3];
const module = { embedDim: E, numHeads: 4, numKvHeads: 2 } as const;

/** Returns feature i of a sample's token, independent of the padding. */
const computeFeature = (sample: number, token: number, i: number, seed: number): number =>
  Math.sin(1 + sample * 17 + token * 5 + i * 3 + seed * 29);

/** Creates [B,S,E] with each sample padded on the left or the right. The padding contains large values. */
function createPaddedBatch(ctx: Context, padding: "left" | "right", counts: readonly number[], seed = 0): Tensor {
  const values = counts.flatMap((count, sample) =>
    Array.from({ length: S * E }, (_, index) => {
      const token = Math.floor(index / E) - (padding === "left" ? S - count : 0);
      return token < 0 || token >= count ? 1e6 : computeFeature(sample, token, index % E, seed);
    }),
  );
  return fromArray(ctx, values, [counts.length, S, E]);
}

/** Creates [1,count,E]: one sample without padding. */
function createSample(ctx: Context, sample: number, count: number, seed = 0): Tensor {
  const values = Array.from({ length: count * E }, (_, index) =>
    computeFeature(sample, Math.floor(index / E), index % E, seed),
  );
  return fromArray(ctx, values, [1, count, E]);
}

/** Returns the tokens of one sample of [B,S,E], without padding. */
function sliceSampleTokens(x: Tensor, sample: number, padding: "left" | "right", count: number): Tensor {
  const firstToken = padding === "left" ? S - count : 0;
  return x.slice(0, sample, sample + 1).slice(1, firstToken, firstToken + count);
}

async function expectClose(a: Tensor, b: Tensor): Promise<void> {
  const [actual, expected] = await Promise.all([a.contiguous().read(), b.contiguous().read()]);
  expect(actual.length).toBe(expected.length);
  for (const [i, value] of actual.entries()) expect(value).toBeCloseTo(expected[i]!, 4);
}

/** A custom placement with unequal shards, one of which has two spans. */
const unevenPlacement: Placement = {
  name: "uneven",
  spans: (index) =>
    [
      [
        { start: 4, length: 2, step: 1 },
        { start: 0, length: 2, step: 1 },
      ],
      [{ start: 2, length: 2, step: 1 }],
    ][index]!,
};

/** A position encoding that multiplies the features of a row by exp(−slope · position). */
const positionScaling: PositionEncoding = {
  encode(x, spans) {
    const rows = spans.flatMap(({ start, length, step }) => Array.from({ length }, (_, i) => start + i * step));
    const table = rows.flatMap((row) => [1, 0.5].map((slope) => Math.exp(-slope * row)));
    return x.mul(fromArray(x.device, table, [rows.length, 2]));
  },
};

describe.each(["left", "right"] as const)("a batch padded on the %s", (padding) => {
  const sampleMasks: readonly Mask[] = [masks.causal(), masks.slidingWindow(2), masks.documents([1, 2])];
  const maskChoices: readonly (Mask | readonly Mask[])[] = [masks.causal(), sampleMasks];

  test.each(maskChoices.map((mask) => [Array.isArray(mask) ? "one for each sample" : "one mask", mask] as const))(
    "gives the same results and gradients as separate samples: %s",
    async (_, mask) => {
      const ctx = (await referenceWorld(1))[0]!;
      const attn = new MultiAxisAttention(ctx, { ...module, attentionAxis: 1 });
      const x = createPaddedBatch(ctx, padding, lengths);
      x.requiresGrad = true;
      const out = attn.forward(x, { mask, lengths, padding });
      const losses = lengths.map((count, sample) => sum(sliceSampleTokens(out, sample, padding, count)));
      losses.reduce((total, each) => total.add(each)).backward();
      for (const [sample, count] of lengths.entries()) {
        const sampleInput = createSample(ctx, sample, count);
        sampleInput.requiresGrad = true;
        const sampleMask = Array.isArray(mask) ? (mask[sample] as Mask) : (mask as Mask);
        const expected = attn.forward(sampleInput, { mask: sampleMask });
        sum(expected).backward();
        await expectClose(sliceSampleTokens(out, sample, padding, count), expected);
        await expectClose(sliceSampleTokens(x.grad!, sample, padding, count), sampleInput.grad!);
      }
    },
  );

  test("gives the same result on two ranks with the placement of the call as on one rank", async () => {
    const [singleContext] = await referenceWorld(1);
    const options = { ...module, attentionAxis: 1 } as const;
    const call = { mask: sampleMasks, lengths, padding };
    const expected = new MultiAxisAttention(singleContext!, options).forward(
      createPaddedBatch(singleContext!, padding, lengths),
      call,
    );
    const ranks = await referenceWorld(2, { backends: [allGatherBackend()] });
    await Promise.all(
      ranks.map(async (ctx) => {
        const attn = new MultiAxisAttention(ctx, {
          ...options,
          backend: "gather",
          placement: "zigzag",
          sequenceLength: 99,
        });
        const shardOptions = { placement: unevenPlacement, length: S };
        const inputShard = shard(ctx, createPaddedBatch(ctx, padding, lengths), 1, shardOptions);
        const out = attn.forward(inputShard, { ...call, placement: unevenPlacement, sequenceLength: S });
        await expectClose(unshard(ctx, out, 1, shardOptions), expected);
      }),
    );
  });

  test("gives the same results as separate samples in CrossAxisAttention with different lengths", async () => {
    const ctx = (await referenceWorld(1))[0]!;
    const attn = new CrossAxisAttention(ctx, { ...module, qAxis: 1, kvAxis: 1 });
    const keyLengths = [1, 6, 4];
    const [q, kv] = [createPaddedBatch(ctx, padding, lengths, 1), createPaddedBatch(ctx, padding, keyLengths, 2)];
    const out = attn.forward(q, kv, {
      mask: sampleMasks.with(2, masks.causal()),
      lengths: { queries: lengths, keys: keyLengths },
      padding,
    });
    for (const [sample, count] of lengths.entries()) {
      const sampleInputs = [
        createSample(ctx, sample, count, 1),
        createSample(ctx, sample, keyLengths[sample]!, 2),
      ] as const;
      const expected = attn.forward(...sampleInputs, { mask: sampleMasks.with(2, masks.causal())[sample]! });
      await expectClose(sliceSampleTokens(out, sample, padding, count), expected);
    }
  });

  test("gives the same result in MultiAxisAttention2D as the flattened sequence", async () => {
    // Both have the same seed and therefore the same weights.
    const [flatContext, gridContext] = [await referenceWorld(1), await referenceWorld(1)].map(([ctx]) => ctx!) as [
      Context,
      Context,
    ];
    const flatAttention = new MultiAxisAttention(flatContext, { ...module, attentionAxis: 1 });
    const gridAttention = new MultiAxisAttention2D(gridContext, { ...module, axis1: 1, axis2: 2 });
    const call = { mask: sampleMasks, lengths, padding };
    const out = gridAttention.forward(createPaddedBatch(gridContext, padding, lengths).reshape([B, 3, 2, E]), call);
    await expectClose(
      out.reshape([B, S, E]),
      flatAttention.forward(createPaddedBatch(flatContext, padding, lengths), call),
    );
  });
});

test("placements of a call apply to queries, keys and their positions", async () => {
  const [singleContext] = await referenceWorld(1);
  const options = { ...module, qAxis: 1, kvAxis: 1, positions: positionScaling } as const;
  const [q, kv] = [createSample(singleContext!, 0, S, 1), createSample(singleContext!, 0, 5, 2)];
  const expected = new CrossAxisAttention(singleContext!, options).forward(q, kv, { mask: masks.slidingWindow(4) });
  const ranks = await referenceWorld(2, { backends: [allGatherBackend()] });
  await Promise.all(
    ranks.map(async (ctx) => {
      const attn = new CrossAxisAttention(ctx, { ...options, backend: "gather" });
      const localShard = shard(ctx, createSample(ctx, 0, S, 1), 1, { placement: unevenPlacement });
      const keys = shard(ctx, createSample(ctx, 0, 5, 2), 1, { placement: "striped" });
      const sequenceLengths = { sequenceLength: S, kvSequenceLength: 5 };
      const call = {
        mask: masks.slidingWindow(4),
        placement: unevenPlacement,
        kvPlacement: "striped",
        ...sequenceLengths,
      } as const;
      const out = attn.forward(localShard, keys, call);
      await expectClose(unshard(ctx, out, 1, { placement: unevenPlacement, length: S }), expected);
    }),
  );
});

test("invalid masks, lengths, padding and placements of a call are rejected with the reason", async () => {
  const ctx = (await referenceWorld(1))[0]!;
  const attn = new MultiAxisAttention(ctx, { ...module, attentionAxis: 1 });
  const x = createPaddedBatch(ctx, "right", lengths);
  expect(() => attn.forward(x, { mask: [masks.causal()] })).toThrow(
    /mask: expected 3 masks, one for each sample of the batch, received 1/,
  );
  expect(() => attn.forward(x, { lengths: [1, 2] })).toThrow(/lengths.queries: expected 3 lengths, .* received 2/);
  expect(() => attn.forward(x, { lengths: [1, 2, 7] })).toThrow(
    /lengths.queries\[2\]: expected at most 6 tokens, .* received 7/,
  );
  expect(() => attn.forward(x, { padding: "top" as never })).toThrow(
    /MultiAxisAttention.forward: padding: expected "left" or "right"/,
  );
  expect(() => attn.forward(x, { placement: "best" as never })).toThrow(
    /MultiAxisAttention.forward: placement: expected contiguous, zigzag/,
  );
  expect(() => attn.forward(x, { mask: [masks.causal(), masks.full(), masks.full()], documents: [6] })).toThrow(
    /expected either mask or documents/,
  );
});

describe("padding on the left with distances between queries and keys", () => {
  const queryLengths = [4, 2];
  const batch = 2;
  const createSlopes = (ctx: Context) => fromArray(ctx, [0.5, 0.25], [2]);
  const createHeads = (ctx: Context, rows: number) => randn(ctx, [batch, 2, rows, 4]);

  test("must be equal before queries and keys with alibiSlopes", async () => {
    const ctx = (await referenceWorld(1))[0]!;
    const alibiSlopes = createSlopes(ctx);
    const [q, kv] = [createHeads(ctx, 4), createHeads(ctx, 6)];
    const call = { alibiSlopes, padding: "left" } as const;
    const attend = (options: object) => attention(ctx, q, kv, kv, { ...call, ...options });
    // Sample 1 has two positions of padding before its queries and before its keys.
    const out = attend({ lengths: { queries: queryLengths, keys: [6, 4] } });
    const [sampleQ, sampleKv] = [q.slice(0, 1, 2).slice(2, 2, 4), kv.slice(0, 1, 2).slice(2, 2, 6)];
    await expectClose(out.slice(0, 1, 2).slice(2, 2, 4), attention(ctx, sampleQ, sampleKv, sampleKv, { alibiSlopes }));
    const attendUnequal = () => attend({ lengths: { queries: queryLengths, keys: [6, 6] } });
    expect(attendUnequal).toThrow(OptionError);
    expect(attendUnequal).toThrow(
      /padding "left" with alibiSlopes: expected as much padding .* received 2 positions before the queries and 0 before the keys of sample 1; pad on the right/,
    );
    // Padding on the right shifts no positions, and a sample without queries has no distances.
    attend({ lengths: { queries: queryLengths, keys: [6, 6] }, padding: "right" });
    attend({ lengths: { queries: [4, 0], keys: [6, 6] } });
    attention(ctx, q, kv, kv, { lengths: { queries: queryLengths, keys: [6, 6] }, padding: "left" });
  });

  test("must be equal before queries and keys with positions in CrossAxisAttention", async () => {
    const ctx = (await referenceWorld(1))[0]!;
    const positions = { encode: (x: Tensor) => x };
    const [q, kv] = [randn(ctx, [batch, 4, 8]), randn(ctx, [batch, 6, 8])];
    const options = { embedDim: 8, numHeads: 2, qAxis: 1, kvAxis: 1 };
    const call = { lengths: { queries: queryLengths, keys: [6, 6] }, padding: "left" } as const;
    const attn = new CrossAxisAttention(ctx, { ...options, positions });
    expect(() => attn.forward(q, kv, call)).toThrow(
      /CrossAxisAttention: padding "left" with positions: expected as much/,
    );
    attn.forward(q, kv, { ...call, padding: "right" });
    attn.forward(q, kv, { ...call, lengths: { queries: queryLengths, keys: [6, 4] } });
    new CrossAxisAttention(ctx, options).forward(q, kv, call);
  });
});
