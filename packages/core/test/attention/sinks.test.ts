import { describe, expect, test } from "vitest";
import { attention, type AttentionOptions } from "../../src/attention/attention.ts";
import type { AttentionBackend } from "../../src/attention/backend.ts";
import { checkpoint } from "../../src/autograd/checkpoint.ts";
import type { Context } from "../../src/context.ts";
import { fromArray } from "../../src/creation.ts";
import { DTypeError, ShapeError } from "../../src/errors.ts";
import { init } from "../../src/init.ts";
import { causal, full, slidingWindow } from "../../src/mask/index.ts";
import type { Mask } from "../../src/mask/slice.ts";
import { MultiAxisAttention } from "../../src/modules/multi-axis-attention.ts";
import { reduceGradients } from "../../src/modules/parameters.ts";
import { layoutOf } from "../../src/placement/layout.ts";
import { type Shape, numel } from "../../src/shape.ts";
import type { Tensor } from "../../src/tensor.ts";
import { allGatherBackend, ReferenceDevice, referenceWorld, values } from "../reference/index.ts";

const openContext = () => init({ device: new ReferenceDevice({ double: true }) });
const [batch, heads, sq, sk, size, scale] = [2, 3, 6, 5, 4, 0.5];
const sinkValues = [-0.7, 0.4, 1.5];

function createLeaf(ctx: Context, shape: Shape, data: ArrayLike<number> = values(numel(shape), numel(shape))): Tensor {
  const x = fromArray(ctx, data, shape);
  x.requiresGrad = true;
  return x;
}

/** Returns a mask with an additional first key that is visible to every query. */
const addFirstKey = (mask: Mask): Mask => ({
  name: "with a first key",
  slices: (queries, keys) => [
    { q0: 0, q1: queries, k0: 0, k1: 1, type: "full" },
    ...mask.slices(queries, keys - 1).map((each) => ({ ...each, k0: each.k0 + 1, k1: each.k1 + 1 })),
  ],
});

/**
 * Appends a column to rows. With 1 in this column of the queries, the score of a key increases by `scale` times the
 * key's column.
 */
function appendColumn(rows: readonly number[], computeColumn: (row: number) => number): number[] {
  const count = rows.length / size;
  return Array.from({ length: count }, (_, i) => [...rows.slice(i * size, (i + 1) * size), computeColumn(i)]).flat();
}

/** Prepends a row to the rows of each head. */
function prependHeadRows(
  rows: readonly number[],
  width: number,
  createFirstRow: (head: number) => readonly number[],
): number[] {
  const valuesPerHead = sk * width;
  return Array.from({ length: batch * heads }, (_, i) => [
    ...createFirstRow(i % heads),
    ...rows.slice(i * valuesPerHead, (i + 1) * valuesPerHead),
  ]).flat();
}

const readAll = (...tensors: readonly Tensor[]) => Promise.all(tensors.map(async (x) => Array.from(await x.read())));

async function computeWithSinks(ctx: Context, mask: Mask, runForward?: (forward: () => Tensor) => Tensor) {
  const q = createLeaf(ctx, [batch, heads, sq, size], values(batch * heads * sq * size, 1));
  const [k, v] = [2, 3].map((seed) =>
    createLeaf(ctx, [batch, heads, sk, size], values(batch * heads * sk * size, seed)),
  );
  const sinks = createLeaf(ctx, [heads], sinkValues);
  const forward = () => attention(ctx, q, k!, v!, { mask, scale, sinks });
  const out = runForward ? runForward(forward) : forward();
  out.backward(fromArray(ctx, values(out.size, 4), out.shape));
  const { lse } = attention(ctx, q, k!, v!, { mask, scale, sinks, returnLse: true });
  const [o, l, dq, dk, dv, dSinks] = await readAll(out, lse, q.grad!, k!.grad!, v!.grad!, sinks.grad!);
  return { out: o!, lse: l!, dq: dq!, dk: dk!, dv: dv!, dSinks: dSinks! };
}

/** As `computeWithSinks`, but with an explicit key with value 0, whose score is the sink of its head. */
async function computeWithExplicitKey(ctx: Context, mask: Mask) {
  const extendedSize = size + 1;
  const rows = (length: number, seed: number) => values(batch * heads * length * size, seed);
  const q = createLeaf(
    ctx,
    [batch, heads, sq, extendedSize],
    appendColumn(rows(sq, 1), () => 1),
  );
  const keys = appendColumn(rows(sk, 2), () => 0);
  const zeros = Array.from({ length: size }, () => 0);
  const k = createLeaf(
    ctx,
    [batch, heads, sk + 1, extendedSize],
    prependHeadRows(keys, extendedSize, (head) => [...zeros, sinkValues[head]! / scale]),
  );
  const v = createLeaf(
    ctx,
    [batch, heads, sk + 1, extendedSize],
    prependHeadRows(
      appendColumn(rows(sk, 3), () => 0),
      extendedSize,
      () => [...zeros, 0],
    ),
  );
  const { out, lse } = attention(ctx, q, k, v, { mask: addFirstKey(mask), scale, returnLse: true });
  const dOut = appendColumn(rows(sq, 4), () => 0);
  out.backward(fromArray(ctx, dOut, out.shape));
  const [o, l, dq, dk, dv] = await readAll(out, lse, q.grad!, k.grad!, v.grad!);
  const dropLastColumn = (x: number[]) => x.filter((_, i) => i % extendedSize < size);
  const dropFirstKey = (x: number[]) => x.filter((_, i) => Math.floor(i / size) % (sk + 1) > 0);
  const dSinks = sinkValues.map((_, head) => {
    const sinkKeyGradient = (sample: number) => dk![(sample * heads + head) * (sk + 1) * extendedSize + size]!;
    return (sinkKeyGradient(0) + sinkKeyGradient(1)) / scale;
  });
  return {
    out: dropLastColumn(o!),
    lse: l!,
    dq: dropLastColumn(dq!),
    dk: dropFirstKey(dropLastColumn(dk!)),
    dv: dropFirstKey(dropLastColumn(dv!)),
    dSinks,
  };
}

type Results = Awaited<ReturnType<typeof computeWithSinks>>;

function expectEqual(actual: Results, expected: Results): void {
  for (const name of Object.keys(expected) as (keyof Results)[]) {
    expect(actual[name], name).toHaveLength(expected[name].length);
    for (const [i, value] of expected[name].entries()) expect(actual[name][i], `${name} ${i}`).toBeCloseTo(value, 6);
  }
}

describe("attention with sinks", () => {
  test.each([
    ["full", full()],
    ["causal, with queries that see no key", causal()],
    ["a window", slidingWindow(2)],
  ])("equals attention with an additional key of value 0: %s", async (_, mask) => {
    await using ctx = await openContext();
    const expected = await computeWithExplicitKey(ctx, mask);
    expect(Math.max(...expected.dSinks.map(Math.abs))).toBeGreaterThan(0.01);
    expectEqual(await computeWithSinks(ctx, mask), expected);
  });

  test.each([true, false])("equals the additional key in a checkpoint, keepAttention %s", async (keepAttention) => {
    await using ctx = await openContext();
    const x = createLeaf(ctx, [1]);
    const runCheckpointed = (forward: () => Tensor) => checkpoint({ keepAttention }, (_x: Tensor) => forward(), x);
    expectEqual(await computeWithSinks(ctx, causal(), runCheckpointed), await computeWithExplicitKey(ctx, causal()));
  });
});

test("padding rows have lse equal to the sink, output 0 and no share of the gradients", async () => {
  await using ctx = await openContext();
  const q = createLeaf(ctx, [1, 1, 4, 2]);
  const sinks = createLeaf(ctx, [1], [0.25]);
  const lengths = { queries: [2], keys: [2] };
  const options: AttentionOptions = { mask: causal(), lengths, sinks };
  const { out, lse } = attention(ctx, q, q, q, { ...options, returnLse: true });
  expect(Array.from(await lse.read()).slice(2)).toEqual([0.25, 0.25]);
  expect(Array.from(await out.read()).slice(4)).toEqual([0, 0, 0, 0]);
  out.backward(fromArray(ctx, [0, 0, 0, 0, 1, 1, 1, 1], out.shape));
  expect(Array.from(await sinks.grad!.read(), Math.abs)).toEqual([0]);
  expect((await q.grad!.read()).every((value) => value === 0)).toBe(true);
});

test("a sink of −Infinity has no effect, also in rows without visible keys", async () => {
  await using ctx = await openContext();
  const x = createLeaf(ctx, [1, 2, 4, 2]);
  const sinks = createLeaf(ctx, [2], [-Infinity, -Infinity]);
  const mask = causal();
  const keys = layoutOf({ mesh: ctx.mesh.shape, axes: [], length: 2 });
  const firstTwoRows = x.slice(2, 0, 2);
  const { out, lse } = attention(ctx, x, firstTwoRows, firstTwoRows, { mask, keys, sinks, returnLse: true });
  const plainResult = attention(ctx, x, firstTwoRows, firstTwoRows, { mask, keys, returnLse: true });
  expect(await lse.read()).toEqual(await plainResult.lse.read());
  expect(await out.read()).toEqual(await plainResult.out.read());
  out.backward(fromArray(ctx, values(16, 1), out.shape));
  expect(Array.from(await sinks.grad!.read(), Math.abs)).toEqual([0, 0]);
});

test("the gradients of the sinks on all ranks sum to the gradient on one device", async () => {
  const gradients = async (contexts: readonly Context[], backend: AttentionBackend | "local") => {
    const rankGradients = contexts.map(async (ctx) => {
      const isSharded = backend !== "local";
      const attn = new MultiAxisAttention(ctx, { embedDim: 8, numHeads: 2, attentionAxis: 1, sinks: true, backend });
      const fullInput = fromArray(ctx, values(6 * 8, 5), [1, 6, 8]);
      const x = isSharded ? fullInput.slice(1, ctx.rank * 3, ctx.rank * 3 + 3) : fullInput;
      attn.forward(x).square().sum().backward();
      const rankGradient = (await attn.sinks!.grad!.read()).slice();
      reduceGradients(ctx, attn);
      return {
        own: rankGradient,
        all: await attn.sinks!.grad!.read(),
        names: attn.namedParameters().map(([name]) => name),
      };
    });
    return Promise.all(rankGradients);
  };
  await using singleContext = await openContext();
  const [singleGradients] = await gradients([singleContext], "local");
  expect(singleGradients!.names).toContain("sinks");
  const contexts = await referenceWorld(2, { double: true });
  const ranks = await gradients(contexts, allGatherBackend("sp"));
  for (const [head, expected] of singleGradients!.all.entries()) {
    expect(Math.abs(expected)).toBeGreaterThan(1e-4);
    expect(ranks[0]!.own[head]! + ranks[1]!.own[head]!).toBeCloseTo(expected, 6);
    for (const { all } of ranks) expect(all[head]).toBeCloseTo(expected, 6);
  }
});

test("forward and backward with sinks release their temporary memory", async () => {
  await using ctx = await openContext();
  const x = createLeaf(ctx, [1, 2, 4, 2]);
  const sinks = createLeaf(ctx, [2]);
  const allocatedBefore = ctx.device.memory().allocated;
  for (let step = 0; step < 3; step++) {
    using out = attention(ctx, x, x, x, { sinks });
    out.backward(fromArray(ctx, values(16, 1), out.shape));
    for (const leafTensor of [x, sinks]) {
      leafTensor.grad!.dispose();
      leafTensor.grad = null;
    }
  }
  await ctx.device.stream.synchronize();
  // The loop does not dispose dOut, which it creates in each step.
  const dOut = 3 * 16 * 4;
  expect(ctx.device.memory().allocated - allocatedBefore).toBeLessThanOrEqual(dOut);
});

test("sinks with an invalid shape or dtype are rejected", async () => {
  await using ctx = await openContext();
  const x = createLeaf(ctx, [1, 2, 4, 2]);
  const createCall = (sinks: Tensor) => () => attention(ctx, x, x, x, { sinks });
  expect(createCall(createLeaf(ctx, [3]))).toThrow(ShapeError);
  expect(createCall(createLeaf(ctx, [3]))).toThrow("sinks: expected shape [2], one logit per query head, received [3]");
  expect(createCall(createLeaf(ctx, [2, 1]))).toThrow(ShapeError);
  expect(createCall(createLeaf(ctx, [2]).to("bfloat16"))).toThrow(DTypeError);
});
