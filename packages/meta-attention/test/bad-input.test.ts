import { runOnWorld } from "@mosaic/conformance";
import {
  type Context,
  contiguous,
  DeviceError,
  DTypeError,
  full,
  masks,
  OptionError,
  randn,
  shard,
  ShapeError,
} from "@mosaic/core";
import { expect, test } from "vitest";
import {
  ChunkSummaryEncoder,
  HierarchicalMetaAttention,
  type HierarchicalMetaAttentionOptions,
  massLoss,
  MetaAttention,
  MultiAxisHierarchicalAttention,
} from "../src/index.ts";
import { makeWorld } from "../../../vitest.world.ts";

const sizes = { embedDim: 8, numHeads: 2, summaryDim: 4, metaHeads: 2 } as const;

/** Returns the error that an invalid call throws on both ranks of a world. The world must still work afterwards. */
async function captureError(body: (ctx: Context) => unknown): Promise<unknown> {
  const errors = await runOnWorld(makeWorld, { size: 2 }, async (ctx) => {
    let thrown: unknown;
    try {
      await body(ctx);
    } catch (error) {
      thrown = error;
    }
    using module = new HierarchicalMetaAttention(ctx, sizes);
    using x = randn(ctx, [1, 4, 8]);
    using result = await module.forward(x);
    expect((await result.out.read()).every(Number.isFinite)).toBe(true);
    return thrown;
  });
  expect(String(errors[0])).toBe(String(errors[1]).replace("rank 1", "rank 0"));
  return errors[0];
}

type Options = Partial<HierarchicalMetaAttentionOptions>;

const wrongOptions: readonly (readonly [options: object, message: RegExp])[] = [
  [{ topK: 2 }, /topK from 0 to 1.*received 2.*chunksPerRank/],
  [{ topK: 6, chunksPerRank: 3 }, /topK from 0 to 5/],
  [{ topK: -1 }, /topK from 0 to 1/],
  [{ topK: 0.5 }, /topK from 0 to 1/],
  [{ topk: 1 }, /"topk"/],
  [{ attentionAxis: 1 }, /"attentionAxis"/],
  [{ combine: "hard" }, /"soft" or "exact".*hard/],
  [{ combine: "soft", gate: false }, /gate/],
  [{ numHeads: 3 }, /embedDim divisible by numHeads.*8 and 3/],
  [{ metaHeads: 3 }, /summaryDim divisible by metaHeads/],
  [{ summaryHeads: 3 }, /embedDim divisible by summaryHeads/],
  [{ summaryDim: 0 }, /summaryDim: expected an integer ≥ 1/],
  [{ chunksPerRank: 1.5 }, /chunksPerRank: expected an integer/],
  [{ maxMissedMass: 1 }, /maxMissedMass: expected a number above 0 and below 1/],
  [{ maxMissedMass: 0 }, /maxMissedMass: expected a number above 0 and below 1/],
  [{ maxMissedMass: 0.1, certificate: false }, /certificate/],
  [{ routingNoise: -1 }, /routingNoise/],
  [{ warmupSteps: -1 }, /warmupSteps/],
  [{ scale: Number.NaN }, /scale/],
  [{ axis: "gpu" }, /axes sp.*"gpu".*init/],
  [{ sequenceLength: 0 }, /sequenceLength/],
  [{ embedDim: 1024 }, /from 1 to 256/],
  [{ headDim: 300 }, /from 1 to 256/],
  [{ headDim: 0 }, /headDim: expected an integer/],
  [{ numKvHeads: 3 }, /numHeads divisible by numKvHeads.*2 and 3/],
  [{ dtype: "float64" }, /dtype: expected "float32", "bfloat16" or "float16".*float64/],
  [{ placement: "diagonal" }, /contiguous, zigzag, striped or a Placement.*diagonal/],
  [{ causal: true, mask: masks.full() }, /causal or mask.*both/],
];

test.each(wrongOptions.map(([options, message]) => [JSON.stringify(options), options, message] as const))(
  "HierarchicalMetaAttention rejects the options %s",
  async (_, options, message) => {
    const error = await captureError((ctx) => new HierarchicalMetaAttention(ctx, { ...sizes, ...options }));
    expect(error).toBeInstanceOf(OptionError);
    expect(String(error)).toMatch(message);
  },
);

test("forward rejects invalid input shapes, options and lists of chosen chunks", async () => {
  const forward = async (shape: number[], options: object = {}, module: Options = {}) =>
    captureError(async (ctx) => {
      using attention = new HierarchicalMetaAttention(ctx, { ...sizes, ...module });
      using x = randn(ctx, shape);
      using _ = await attention.forward(x, options);
    });
  expect(await forward([1, 4, 7])).toBeInstanceOf(ShapeError);
  expect(String(await forward([1, 4, 7]))).toMatch(/\[B,S,8\].*\[1,4,7\]/);
  expect(String(await forward([1, 2, 4, 8]))).toMatch(/MultiAxisHierarchicalAttention/);
  expect(String(await forward([1, 4, 8], { sequenceLength: 20 }))).toMatch(/shard of 20.*received 4/);
  expect(String(await forward([1, 0, 8]))).toMatch(/at least one token/);
  const shardError = await captureError(async (ctx) => {
    using attention = new HierarchicalMetaAttention(ctx, sizes);
    using full = randn(ctx, [1, 8, 8]);
    using x = shard(ctx, full, 1, { placement: "zigzag" });
    using _ = await attention.forward(x);
  });
  expect(String(shardError)).toMatch(/rank 0: expected .* contiguous: 0:4 \| 4:8, received .* zigzag: /);
  expect(await forward([1, 4, 8], { steps: 3 })).toBeInstanceOf(OptionError);
  expect(await forward([1, 4, 8], { step: -1 })).toBeInstanceOf(OptionError);
  for (const chosen of [[], [[[1]]], [[[0], []]], [[[1, 1], []]], [[[2], []]]]) {
    expect(String(await forward([1, 4, 8], { chosen }))).toMatch(/chosen\[1\]\[2\]/);
  }
  expect(String(await forward([1, 4, 8], { chosen: [[[1], []]] }, { causal: true }))).toMatch(/earlier/);
  expect(String(await forward([1, 4, 8], { dryRun: true }))).toMatch(/received none/);
});

test.each([
  ["striped", 1],
  ["striped", 2],
  ["zigzag", 1],
  ["zigzag", 3],
] as const)("causal routing rejects chunks that interleave: %s, %i per rank", async (...testCase) => {
  const [placement, chunksPerRank] = testCase;
  const error = await captureError(async (ctx) => {
    using attention = new HierarchicalMetaAttention(ctx, { ...sizes, placement, chunksPerRank, causal: true });
    using x = randn(ctx, [1, 12, 8]);
    using _ = await attention.forward(x);
  });
  expect(error).toBeInstanceOf(OptionError);
  expect(String(error)).toMatch(
    new RegExp(`before the whole chunk.*${placement} with interleaved chunks.*"zigzag" with an even`),
  );
});

test("forward rejects a mask or a placement for a different sequence length", async () => {
  const forward = (options: Options) =>
    captureError(async (ctx) => {
      using attention = new HierarchicalMetaAttention(ctx, { ...sizes, ...options });
      using x = randn(ctx, [1, 4, 8]);
      using _ = await attention.forward(x);
    });
  expect(String(await forward({ mask: masks.documents([3, 4]) }))).toMatch(/sequence of length 7/);
  expect(String(await forward({ placement: contiguous([3, 4]) }))).toMatch(/2 lengths that sum to 8/);
});

test("massLoss rejects an invalid pool and unknown options", async () => {
  const loss = (options: object) =>
    captureError(async (ctx) => {
      using attention = new HierarchicalMetaAttention(ctx, sizes);
      using x = randn(ctx, [1, 4, 8]);
      using result = await attention.forward(x);
      massLoss(result.meta, options).dispose();
    });
  expect(String(await loss({ pool: "max" }))).toMatch(
    /OptionError: massLoss: pool: expected "peak" or "mean", received "max"/,
  );
  expect(await loss({ pooling: "mean" })).toBeInstanceOf(OptionError);
});

test("forward rejects an input whose dtype differs from the module's", async () => {
  const error = await captureError(async (ctx) => {
    using attention = new HierarchicalMetaAttention(ctx, sizes);
    using x = randn(ctx, [1, 4, 8], { dtype: "bfloat16" });
    using _ = await attention.forward(x);
  });
  expect(error).toBeInstanceOf(DTypeError);
  expect(String(error)).toMatch(/to\("float32"\).*dtype: "bfloat16"/);
});

test("every rank rejects an input that is not finite on one of them", async () => {
  const error = await captureError(async (ctx) => {
    using attention = new HierarchicalMetaAttention(ctx, sizes);
    using x = full(ctx, [1, 4, 8], ctx.rank === 0 ? Number.NaN : 1);
    using _ = await attention.forward(x);
  });
  expect(error).toBeInstanceOf(DeviceError);
  expect(String(error)).toMatch(/NaN.*diverged/);
});

test("MultiAxisHierarchicalAttention rejects an invalid attentionAxis", async () => {
  for (const attentionAxis of [2, -1, 3]) {
    const error = await captureError(async (ctx) => {
      using attention = new MultiAxisHierarchicalAttention(ctx, { ...sizes, attentionAxis });
      using x = randn(ctx, [1, 4, 8]);
      using _ = await attention.forward(x);
    });
    expect(error).toBeInstanceOf(ShapeError);
  }
  const createModule = (ctx: Context) => new MultiAxisHierarchicalAttention(ctx, { ...sizes, attentionAxis: 0.5 });
  expect(await captureError(createModule)).toBeInstanceOf(OptionError);
});

test("ChunkSummaryEncoder and MetaAttention reject invalid options and inputs", async () => {
  expect(await captureError((ctx) => new ChunkSummaryEncoder(ctx, { embedDim: 6 }))).toBeInstanceOf(OptionError);
  expect(await captureError((ctx) => new MetaAttention(ctx, { summaryDim: 6 }))).toBeInstanceOf(OptionError);
  const emptyError = await captureError(async (ctx) => {
    using encoder = new ChunkSummaryEncoder(ctx, { embedDim: 8 });
    using x = randn(ctx, [1, 0, 8]);
    await encoder.forward(x);
  });
  expect(String(emptyError)).toMatch(/with S ≥ 1/);
  const flatError = await captureError((ctx) => {
    using meta = new MetaAttention(ctx, { summaryDim: 8 });
    using x = randn(ctx, [4, 8]);
    meta.forward(x);
  });
  expect(flatError).toBeInstanceOf(ShapeError);
});
