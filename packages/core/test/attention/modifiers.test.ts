import { describe, expect, test } from "vitest";
import { attention, type AttentionOptions } from "../../src/attention/attention.ts";
import { checkpoint } from "../../src/autograd/checkpoint.ts";
import type { Context } from "../../src/context.ts";
import { fromArray } from "../../src/creation.ts";
import { DTypeError, OptionError, ShapeError } from "../../src/errors.ts";
import { init } from "../../src/init.ts";
import type { Coordinate } from "../../src/mesh.ts";
import { causal } from "../../src/mask/index.ts";
import { MultiAxisAttention } from "../../src/modules/multi-axis-attention.ts";
import { add, scale } from "../../src/ops/pointwise.ts";
import { matmul } from "../../src/ops/matmul.ts";
import { softmax } from "../../src/ops/softmax.ts";
import { layoutOf } from "../../src/placement/layout.ts";
import { type Shape, numel } from "../../src/shape.ts";
import type { Tensor } from "../../src/tensor.ts";
import { allGatherBackend, ReferenceDevice, referenceWorld, values } from "../reference/index.ts";

const openContext = () => init({ device: new ReferenceDevice({ double: true }) });
const [batch, heads, length, size, valueSize] = [2, 3, 6, 4, 5];
const headSlopes = [0.5, 0.25, 0.75];

function createLeaf(ctx: Context, shape: Shape, seed: number): Tensor {
  const x = fromArray(ctx, values(numel(shape), seed), shape);
  x.requiresGrad = true;
  return x;
}

const inputs = (ctx: Context) =>
  [createLeaf(ctx, [batch, heads, length, size], 1), createLeaf(ctx, [batch, heads, length, size], 2)].concat(
    createLeaf(ctx, [batch, heads, length, valueSize], 3),
  ) as [Tensor, Tensor, Tensor];

/** Reference causal attention with softcap and slopes, composed of operations whose gradients are tested separately. */
function referenceAttention(
  [q, k, v]: [Tensor, Tensor, Tensor],
  { softcap }: { softcap?: number },
  slopes?: readonly number[],
) {
  const bias = Array.from({ length: heads * length * length }, (_, n) => {
    const [head, i, j] = [Math.floor(n / length ** 2), Math.floor(n / length) % length, n % length];
    return j > i ? -Infinity : -(slopes?.[head] ?? 0) * (i - j);
  });
  const scores = scale(matmul(q, k.transpose(-2, -1)), 2);
  const cappedScores = softcap === undefined ? scores : scale(scale(scores, 1 / softcap).tanh(), softcap);
  return matmul(softmax(add(cappedScores, fromArray(q.device, bias, [heads, length, length]))), v);
}

async function computeResults(out: Tensor, qkv: readonly Tensor[]) {
  out.backward(fromArray(out.device, values(out.size, 4), out.shape));
  return Promise.all([out, ...qkv.map((x) => x.grad!)].map(async (x) => Array.from(await x.read())));
}

function expectClose(actual: readonly number[][], expected: readonly number[][]): void {
  for (const [i, expectedValues] of expected.entries()) {
    expect(actual[i]).toHaveLength(expectedValues.length);
    for (const [j, value] of expectedValues.entries()) expect(actual[i]![j]).toBeCloseTo(value, 6);
  }
}

describe("attention with modifiers", () => {
  test.each([
    ["softcap", { softcap: 0.8 }, undefined],
    ["slopes", {}, headSlopes],
    ["softcap before slopes", { softcap: 0.8 }, headSlopes],
    ["neither, of values of another head size", {}, undefined],
  ])("matches the reference: %s", async (_, options, slopes) => {
    await using ctx = await openContext();
    const [qkv, referenceQkv] = [inputs(ctx), inputs(ctx)];
    const alibiSlopes = slopes && fromArray(ctx, slopes, [heads]);
    const out = attention(ctx, ...qkv, { mask: causal(), scale: 2, ...options, alibiSlopes });
    expect(out.shape).toEqual([batch, heads, length, valueSize]);
    expectClose(
      await computeResults(out, qkv),
      await computeResults(referenceAttention(referenceQkv, options, slopes), referenceQkv),
    );
  });
});

describe("dropout", () => {
  const options: AttentionOptions = { mask: causal(), dropout: 0.4 };

  test("repeats in a fresh context, differs in the next call, and has no effect with probability 0", async () => {
    await using ctx = await openContext();
    await using otherContext = await openContext();
    const attendWithDropout = async (context: Context, probability: number) =>
      Array.from(await attention(context, ...inputs(context), { ...options, dropout: probability }).read());
    const firstOutput = await attendWithDropout(ctx, 0.4);
    expect(await attendWithDropout(otherContext, 0.4)).toEqual(firstOutput);
    expect(await attendWithDropout(ctx, 0.4)).not.toEqual(firstOutput);
    const outputWithoutDropout = Array.from(await attention(ctx, ...inputs(ctx), { mask: causal() }).read());
    expect(await attendWithDropout(ctx, 0)).toEqual(outputWithoutDropout);
    expect(firstOutput).not.toEqual(outputWithoutDropout);
  });

  test("scales the kept weights by 1 / (1 − probability) and does not change lse", async () => {
    await using ctx = await openContext();
    const [rows, probability] = [40, 0.25];
    const q = fromArray(ctx, new Float64Array(rows * size), [1, 1, rows, size]);
    const v = fromArray(ctx, new Float64Array(rows).fill(1), [1, 1, rows, 1]);
    const { out, lse } = attention(ctx, q, q, v, { dropout: probability, returnLse: true });
    for (const value of await lse.read()) expect(value).toBeCloseTo(Math.log(rows), 5);
    const counts = Array.from(await out.read(), (x) => x * rows * (1 - probability));
    for (const keptCount of counts) expect(keptCount).toBeCloseTo(Math.round(keptCount), 4);
    const mean = counts.reduce((sum, keptCount) => sum + keptCount, 0) / rows ** 2;
    expect(Math.abs(mean - (1 - probability))).toBeLessThan((5 * Math.sqrt(probability * (1 - probability))) / rows);
  });

  test.each([true, false])("is the same in both forwards of a checkpoint, keepAttention %s", async (keepAttention) => {
    await using ctx = await openContext();
    await using otherContext = await openContext();
    const [checkpointedQkv, plainQkv] = [inputs(ctx), inputs(otherContext)];
    const attendWithDropout = (q: Tensor, k: Tensor, v: Tensor) => attention(ctx, q, k, v, options);
    const expected = await computeResults(attention(otherContext, ...plainQkv, options), plainQkv);
    expectClose(
      await computeResults(checkpoint({ keepAttention }, attendWithDropout, ...checkpointedQkv), checkpointedQkv),
      expected,
    );
  });

  test.each<Coordinate>([
    { dp: 2, sp: 2 },
    { dp_replicate: 2, sp: 2, dp_shard: 1 },
    { dp_replicate: 1, dp_shard: 2, sp: 2 },
  ])("is the same with a sharded sequence and batch as on one device, mesh %j", async (mesh) => {
    await using singleContext = await openContext();
    const fullQkv = inputs(singleContext);
    const [expected] = await computeResults(attention(singleContext, ...fullQkv, options), fullQkv);
    const contexts = await referenceWorld(4, { double: true, mesh });
    const rankOutputs = contexts.map(async (ctx) => {
      const { sp = 0, ...otherCoordinates } = ctx.mesh.coordinate;
      // Only one of the data-parallel axes has more than one rank.
      const dp = Math.max(...Object.values(otherCoordinates));
      const qkvShard = inputs(ctx).map((x) =>
        x
          .slice(0, dp, dp + 1)
          .slice(2, 3 * sp, 3 * sp + 3)
          .contiguous(),
      );
      const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length });
      const backend = allGatherBackend("sp");
      const [q, k, v] = qkvShard as [Tensor, Tensor, Tensor];
      const out = attention(ctx, q, k, v, { ...options, backend, queries: layout, keys: layout });
      return { dp, sp, out: Array.from(await out.read()) };
    });
    for (const { dp, sp, out } of await Promise.all(rankOutputs)) {
      for (const [i, value] of out.entries()) {
        const [head, shardOffset] = [Math.floor(i / (3 * valueSize)), i % (3 * valueSize)];
        const fullIndex = ((dp * heads + head) * length + 3 * sp) * valueSize + shardOffset;
        expect(value).toBeCloseTo(expected![fullIndex]!, 6);
      }
    }
  });

  test("is disabled in a module by eval()", async () => {
    await using ctx = await openContext();
    const attn = new MultiAxisAttention(ctx, { embedDim: 6, numHeads: 3, attentionAxis: 1, dropout: 0.5 });
    const x = createLeaf(ctx, [1, 8, 6], 1);
    const forwardOutput = async () => Array.from(await attn.forward(x).read());
    expect(await forwardOutput()).not.toEqual(await forwardOutput());
    attn.eval();
    expect(await forwardOutput()).toEqual(await forwardOutput());
  });
});

test("slopes may be disposed before the backward, but may not be mutated", async () => {
  await using ctx = await openContext();
  const [disposedSlopesQkv, keptSlopesQkv] = [inputs(ctx), inputs(ctx)];
  const [disposedSlopes, keptSlopes] = [fromArray(ctx, headSlopes, [heads]), fromArray(ctx, headSlopes, [heads])];
  const out = attention(ctx, ...disposedSlopesQkv, { mask: causal(), alibiSlopes: disposedSlopes });
  disposedSlopes.dispose();
  const expected = attention(ctx, ...keptSlopesQkv, { mask: causal(), alibiSlopes: keptSlopes });
  expectClose(await computeResults(out, disposedSlopesQkv), await computeResults(expected, keptSlopesQkv));
  const mutatedSlopesOutput = attention(ctx, ...inputs(ctx), { alibiSlopes: keptSlopes });
  ctx.device.kernels.fill(keptSlopes, 0);
  expect(() =>
    mutatedSlopesOutput.backward(fromArray(ctx, values(mutatedSlopesOutput.size, 4), mutatedSlopesOutput.shape)),
  ).toThrow(/mutated|version/);
});

test("MultiAxisAttention applies softcap and alibiSlopes", async () => {
  const outputs = [];
  for (const name of ["none", "softcap", "alibiSlopes"]) {
    await using ctx = await openContext();
    const options = {
      none: {},
      softcap: { softcap: 0.01 },
      alibiSlopes: { alibiSlopes: fromArray(ctx, headSlopes, [heads]) },
    };
    const invalidOption = options[name as keyof typeof options];
    const attn = new MultiAxisAttention(ctx, { embedDim: 6, numHeads: 3, attentionAxis: 1, ...invalidOption });
    outputs.push(String(await attn.forward(createLeaf(ctx, [1, 8, 6], 1)).read()));
  }
  expect(new Set(outputs).size).toBe(3);
});

test("invalid softcap, dropout and slopes are rejected", async () => {
  await using ctx = await openContext();
  const qkv = inputs(ctx);
  const createCall = (options: AttentionOptions) => () => attention(ctx, ...qkv, options);
  for (const softcap of [0, -1, Number.NaN]) expect(createCall({ softcap })).toThrow(OptionError);
  for (const dropout of [-0.1, 1]) expect(createCall({ dropout })).toThrow(OptionError);
  expect(createCall({ alibiSlopes: fromArray(ctx, [1, 2], [2]) })).toThrow(ShapeError);
  expect(createCall({ alibiSlopes: fromArray(ctx, [1, 2], [2]) })).toThrow(
    "expected shape [3], one slope per query head",
  );
  expect(createCall({ alibiSlopes: fromArray(ctx, [1, 2, 3, 4], [4]) })).toThrow(ShapeError);
  expect(createCall({ alibiSlopes: fromArray(ctx, headSlopes, [heads]).to("bfloat16") })).toThrow(DTypeError);
});
