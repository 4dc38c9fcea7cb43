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
import { gather, ReferenceDevice, referenceWorld, values } from "../reference/index.ts";

const open = () => init({ device: new ReferenceDevice({ double: true }) });
const [batch, heads, sq, sk, size, scale] = [2, 3, 6, 5, 4, 0.5];
const sinkValues = [-0.7, 0.4, 1.5];

function leaf(ctx: Context, shape: Shape, data: ArrayLike<number> = values(numel(shape), numel(shape))): Tensor {
  const x = fromArray(ctx, data, shape);
  x.requiresGrad = true;
  return x;
}

/** A mask, and a key before all others that every query sees. */
const withFirstKey = (mask: Mask): Mask => ({
  name: "with a first key",
  slices: (queries, keys) => [
    { q0: 0, q1: queries, k0: 0, k1: 1, type: "full" },
    ...mask.slices(queries, keys - 1).map((each) => ({ ...each, k0: each.k0 + 1, k1: each.k1 + 1 })),
  ],
});

/** Rows with one more column: of the queries 1, so that a key's score grows by `scale` times its own. */
function widen(rows: readonly number[], column: (row: number) => number): number[] {
  const count = rows.length / size;
  return Array.from({ length: count }, (_, i) => [...rows.slice(i * size, (i + 1) * size), column(i)]).flat();
}

/** A first row of each head before the others. */
function prepend(rows: readonly number[], width: number, first: (head: number) => readonly number[]): number[] {
  const perHead = sk * width;
  return Array.from({ length: batch * heads }, (_, i) => [
    ...first(i % heads),
    ...rows.slice(i * perHead, (i + 1) * perHead),
  ]).flat();
}

const read = (...tensors: readonly Tensor[]) => Promise.all(tensors.map(async (x) => Array.from(await x.read())));

async function withSinks(ctx: Context, mask: Mask, run?: (forward: () => Tensor) => Tensor) {
  const q = leaf(ctx, [batch, heads, sq, size], values(batch * heads * sq * size, 1));
  const [k, v] = [2, 3].map((seed) => leaf(ctx, [batch, heads, sk, size], values(batch * heads * sk * size, seed)));
  const sinks = leaf(ctx, [heads], sinkValues);
  const forward = () => attention(ctx, q, k!, v!, { mask, scale, sinks });
  const out = run ? run(forward) : forward();
  out.backward(fromArray(ctx, values(out.size, 4), out.shape));
  const { lse } = attention(ctx, q, k!, v!, { mask, scale, sinks, returnLse: true });
  const [o, l, dq, dk, dv, dSinks] = await read(out, lse, q.grad!, k!.grad!, v!.grad!, sinks.grad!);
  return { out: o!, lse: l!, dq: dq!, dk: dk!, dv: dv!, dSinks: dSinks! };
}

/** The same with an explicit key of value 0, whose score is the sink of its head. */
async function withExplicitKey(ctx: Context, mask: Mask) {
  const wide = size + 1;
  const rows = (length: number, seed: number) => values(batch * heads * length * size, seed);
  const q = leaf(
    ctx,
    [batch, heads, sq, wide],
    widen(rows(sq, 1), () => 1),
  );
  const keys = widen(rows(sk, 2), () => 0);
  const zeros = Array.from({ length: size }, () => 0);
  const k = leaf(
    ctx,
    [batch, heads, sk + 1, wide],
    prepend(keys, wide, (head) => [...zeros, sinkValues[head]! / scale]),
  );
  const v = leaf(
    ctx,
    [batch, heads, sk + 1, wide],
    prepend(
      widen(rows(sk, 3), () => 0),
      wide,
      () => [...zeros, 0],
    ),
  );
  const { out, lse } = attention(ctx, q, k, v, { mask: withFirstKey(mask), scale, returnLse: true });
  const dOut = widen(rows(sq, 4), () => 0);
  out.backward(fromArray(ctx, dOut, out.shape));
  const [o, l, dq, dk, dv] = await read(out, lse, q.grad!, k.grad!, v.grad!);
  const narrow = (x: number[]) => x.filter((_, i) => i % wide < size);
  const notFirst = (x: number[]) => x.filter((_, i) => Math.floor(i / size) % (sk + 1) > 0);
  const dSinks = sinkValues.map((_, head) => {
    const lastOfFirst = (sample: number) => dk![(sample * heads + head) * (sk + 1) * wide + size]!;
    return (lastOfFirst(0) + lastOfFirst(1)) / scale;
  });
  return { out: narrow(o!), lse: l!, dq: narrow(dq!), dk: notFirst(narrow(dk!)), dv: notFirst(narrow(dv!)), dSinks };
}

type Results = Awaited<ReturnType<typeof withSinks>>;

function expectEqual(actual: Results, expected: Results): void {
  for (const name of Object.keys(expected) as (keyof Results)[]) {
    expect(actual[name], name).toHaveLength(expected[name].length);
    for (const [i, value] of expected[name].entries()) expect(actual[name][i], `${name} ${i}`).toBeCloseTo(value, 6);
  }
}

describe("a sink is a key of value 0 that every row sees", () => {
  test.each([
    ["full", full()],
    ["causal, with queries that see no key", causal()],
    ["a window", slidingWindow(2)],
  ])("%s", async (_, mask) => {
    await using ctx = await open();
    const expected = await withExplicitKey(ctx, mask);
    expect(Math.max(...expected.dSinks.map(Math.abs))).toBeGreaterThan(0.01);
    expectEqual(await withSinks(ctx, mask), expected);
  });

  test.each([true, false])("in a checkpoint, keepAttention %s", async (keepAttention) => {
    await using ctx = await open();
    const x = leaf(ctx, [1]);
    const run = (forward: () => Tensor) => checkpoint({ keepAttention }, (_x: Tensor) => forward(), x);
    expectEqual(await withSinks(ctx, causal(), run), await withExplicitKey(ctx, causal()));
  });
});

test("of rows that see no key, and of padding, lse is the sink, and out and their share of gradients are 0", async () => {
  await using ctx = await open();
  const q = leaf(ctx, [1, 1, 4, 2]);
  const sinks = leaf(ctx, [1], [0.25]);
  const lengths = { queries: [2], keys: [2] };
  const options: AttentionOptions = { mask: causal(), lengths, sinks };
  const { out, lse } = attention(ctx, q, q, q, { ...options, returnLse: true });
  expect(Array.from(await lse.read()).slice(2)).toEqual([0.25, 0.25]);
  expect(Array.from(await out.read()).slice(4)).toEqual([0, 0, 0, 0]);
  out.backward(fromArray(ctx, [0, 0, 0, 0, 1, 1, 1, 1], out.shape));
  expect(Array.from(await sinks.grad!.read(), Math.abs)).toEqual([0]);
  expect((await q.grad!.read()).every((value) => value === 0)).toBe(true);
});

test("a sink of −Infinity is none, also for rows that see nothing", async () => {
  await using ctx = await open();
  const x = leaf(ctx, [1, 2, 4, 2]);
  const sinks = leaf(ctx, [2], [-Infinity, -Infinity]);
  const mask = causal();
  const keys = layoutOf({ mesh: ctx.mesh.shape, axes: [], length: 2 });
  const some = x.slice(2, 0, 2);
  const { out, lse } = attention(ctx, x, some, some, { mask, keys, sinks, returnLse: true });
  const plain = attention(ctx, x, some, some, { mask, keys, returnLse: true });
  expect(await lse.read()).toEqual(await plain.lse.read());
  expect(await out.read()).toEqual(await plain.out.read());
  out.backward(fromArray(ctx, values(16, 1), out.shape));
  expect(Array.from(await sinks.grad!.read(), Math.abs)).toEqual([0, 0]);
});

test("each rank's gradient is its rows' share, and the sum over ranks is the gradient of one device", async () => {
  const gradients = async (contexts: readonly Context[], backend: AttentionBackend | "local") => {
    const reads = contexts.map(async (ctx) => {
      const sharded = backend !== "local";
      const attn = new MultiAxisAttention(ctx, { embedDim: 8, numHeads: 2, attentionAxis: 1, sinks: true, backend });
      const all = fromArray(ctx, values(6 * 8, 5), [1, 6, 8]);
      const x = sharded ? all.slice(1, ctx.rank * 3, ctx.rank * 3 + 3) : all;
      attn.forward(x).square().sum().backward();
      const own = (await attn.sinks!.grad!.read()).slice();
      reduceGradients(ctx, attn);
      return { own, all: await attn.sinks!.grad!.read(), names: attn.namedParameters().map(([name]) => name) };
    });
    return Promise.all(reads);
  };
  await using one = await open();
  const [alone] = await gradients([one], "local");
  expect(alone!.names).toContain("sinks");
  const contexts = await referenceWorld(2, { double: true });
  const ranks = await gradients(contexts, gather("sp"));
  for (const [head, expected] of alone!.all.entries()) {
    expect(Math.abs(expected)).toBeGreaterThan(1e-4);
    expect(ranks[0]!.own[head]! + ranks[1]!.own[head]!).toBeCloseTo(expected, 6);
    for (const { all } of ranks) expect(all[head]).toBeCloseTo(expected, 6);
  }
});

test("what is made for sinks is released", async () => {
  await using ctx = await open();
  const x = leaf(ctx, [1, 2, 4, 2]);
  const sinks = leaf(ctx, [2]);
  const before = ctx.device.memory().allocated;
  for (let step = 0; step < 3; step++) {
    using out = attention(ctx, x, x, x, { sinks });
    out.backward(fromArray(ctx, values(16, 1), out.shape));
    for (const each of [x, sinks]) {
      each.grad!.dispose();
      each.grad = null;
    }
  }
  await ctx.device.stream.synchronize();
  // What a loop makes anew and hands in, dOut, is the caller's.
  const dOut = 3 * 16 * 4;
  expect(ctx.device.memory().allocated - before).toBeLessThanOrEqual(dOut);
});

test("sinks of another shape or dtype are rejected", async () => {
  await using ctx = await open();
  const x = leaf(ctx, [1, 2, 4, 2]);
  const run = (sinks: Tensor) => () => attention(ctx, x, x, x, { sinks });
  expect(run(leaf(ctx, [3]))).toThrow(ShapeError);
  expect(run(leaf(ctx, [3]))).toThrow("sinks: expected shape [2], one logit per query head, received [3]");
  expect(run(leaf(ctx, [2, 1]))).toThrow(ShapeError);
  expect(run(leaf(ctx, [2]).to("bfloat16"))).toThrow(DTypeError);
});
