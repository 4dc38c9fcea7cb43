import {
  type Context,
  type Coordinate,
  CrossAxisAttention,
  fromArray,
  mul,
  MultiAxisAttention,
  OutOfMemoryError,
  type PlacementName,
  reduceGradients,
  shard,
  type Span,
  sum,
  type Tensor,
  unshard,
  zeros,
} from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { describe, expect, test, vi } from "vitest";
import { RotaryEmbedding } from "../src/index.ts";
import { numericalDerivative, generateNumbers, maxDifference } from "./reference/numbers.ts";
import { onOneRank, onMesh } from "./reference/world.ts";

const [heads, dim] = [2, 6];
const spans: readonly Span[] = [
  { start: 100_000, length: 2, step: 3 },
  { start: 1, length: 1, step: 1 },
];
const testPositions = [100_000, 100_003, 1];

/** Rotates x [1,2,3,6] in float64, by the definition of the paper. */
function rotateReference(x: readonly number[], interleaved: boolean): number[] {
  const out = [...x];
  for (let row = 0; row < heads * testPositions.length; row++) {
    for (let pair = 0; pair < dim / 2; pair++) {
      const angle = testPositions[row % testPositions.length]! * 10_000 ** ((-2 * pair) / dim);
      const [i, j] = interleaved ? [2 * pair, 2 * pair + 1] : [pair, pair + dim / 2];
      const [a, b] = [x[row * dim + i]!, x[row * dim + j]!];
      out[row * dim + i] = a * Math.cos(angle) - b * Math.sin(angle);
      out[row * dim + j] = b * Math.cos(angle) + a * Math.sin(angle);
    }
  }
  return out;
}

test.each([false, true])(
  "pairs and their gradients are rotated as defined by the paper, interleaved %s",
  (interleaved) =>
    onOneRank(async (ctx) => {
      using rotary = new RotaryEmbedding(dim, { interleaved });
      const size = heads * testPositions.length * dim;
      const [values, weights] = [generateNumbers(size, 1), generateNumbers(size, 2)];
      using x = fromArray(ctx, values, [1, heads, testPositions.length, dim]);
      x.requiresGrad = true;
      using out = rotary.encode(x, spans);
      expect(maxDifference(await out.read(), rotateReference(values, interleaved))).toBeLessThan(1e-6);
      using weight = fromArray(ctx, weights, x.shape);
      using weightedOutput = mul(out, weight);
      using loss = sum(weightedOutput);
      loss.backward();
      const f = (inputValues: readonly number[]) =>
        rotateReference(inputValues, interleaved).reduce((total, value, i) => total + value * weights[i]!, 0);
      expect(maxDifference(await x.grad!.read(), numericalDerivative(f, values))).toBeLessThan(1e-6);
    }),
);

test("products of queries and keys depend only on their distance", () =>
  onOneRank(async (ctx) => {
    using rotary = new RotaryEmbedding(8);
    const scoreAtPositions = async (queryPosition: number, keyPosition: number): Promise<number> => {
      const encode = (seed: number, start: number): Tensor =>
        rotary.encode(fromArray(ctx, generateNumbers(8, seed), [1, 1, 1, 8]), [{ start, length: 1, step: 1 }]);
      return sum(mul(encode(1, queryPosition), encode(2, keyPosition))).item();
    };
    const expected = await scoreAtPositions(7, 3);
    for (const shift of [1, 500, 100_000])
      expect(await scoreAtPositions(7 + shift, 3 + shift)).toBeCloseTo(expected, 5);
    expect(Math.abs((await scoreAtPositions(8, 3)) - expected)).toBeGreaterThan(1e-3);
  }));

const [length, embedDim] = [11, 8];

/** Returns the gathered output, and the gradients of x and of the parameters. */
async function runAttention(ctx: Context, placement: PlacementName): Promise<number[][]> {
  const rotary = new RotaryEmbedding(4);
  const options = { embedDim, numHeads: 2, causal: true, backend: "ring", placement, positions: rotary } as const;
  const selfAttention = new MultiAxisAttention(ctx, { ...options, attentionAxis: 1, sequenceLength: length });
  const crossAttention = new CrossAxisAttention(ctx, {
    ...options,
    qAxis: 1,
    kvAxis: 1,
    sequenceLength: length,
    kvSequenceLength: length,
  });
  using fullInput = fromArray(ctx, generateNumbers(2 * length * embedDim, 3), [2, length, embedDim]);
  const x = shard(ctx, fullInput, 1, { placement }).detach();
  x.requiresGrad = true;
  using selfOutput = selfAttention.forward(x);
  using out = crossAttention.forward(selfOutput, x);
  using seed = shard(ctx, fullInput, 1, { placement });
  out.backward(seed);
  for (const module of [selfAttention, crossAttention]) reduceGradients(ctx, module);
  const fullTensors = [out, x.grad!].map((each) => unshard(ctx, each, 1, { placement, length }));
  const parameters = [...selfAttention.parameters(), ...crossAttention.parameters()].map(({ grad }) => grad!);
  return Promise.all([...fullTensors, ...parameters].map(async (each) => Array.from(await each.read())));
}

describe.each(["contiguous", "zigzag", "striped"] as const)("in attention, %s", (placement) => {
  test("every mesh gives the same output and gradients", async () => {
    const [expected] = await onMesh({ sp: 1 }, (ctx) => runAttention(ctx, placement));
    for (const mesh of [{ sp: 2 }, { sp: 4 }] satisfies Coordinate[]) {
      for (const actual of await onMesh(mesh, (ctx) => runAttention(ctx, placement))) {
        for (const [i, values] of actual.entries()) expect(maxDifference(values, expected![i]!)).toBeLessThan(5e-6);
      }
    }
  });
});

test("dispose frees the tables of all layouts", () =>
  onOneRank(async (ctx) => {
    const allocatedBefore = ctx.device.memory().allocated;
    const rotary = new RotaryEmbedding(4);
    using x = fromArray(ctx, generateNumbers(8, 1), [1, 1, 2, 4]);
    for (let start = 0; start < 20; start++) rotary.encode(x, [{ start, length: 2, step: 1 }]).dispose();
    rotary.dispose();
    x.dispose();
    expect(ctx.device.memory().allocated).toBe(allocatedBefore);
  }));

test("the four most recently used tables are kept", () =>
  onOneRank((ctx) => {
    using rotary = new RotaryEmbedding(4);
    using x = fromArray(ctx, generateNumbers(8, 1), [1, 1, 2, 4]);
    const encodeFrom = (start: number): void => rotary.encode(x, [{ start, length: 2, step: 1 }]).dispose();
    for (const start of [0, 10, 20, 30, 0, 40]) encodeFrom(start);
    const write = vi.spyOn(ctx.device, "write");
    for (const start of [0, 20, 30, 40]) encodeFrom(start);
    expect(write).not.toHaveBeenCalled();
    encodeFrom(10);
    expect(write).toHaveBeenCalled();
  }));

test("one embedding encodes tensors of two devices of the same type and index", async () => {
  using rotary = new RotaryEmbedding(4);
  using device = cpu({ threads: 1 });
  using otherDevice = cpu({ threads: 1 });
  const encodeOn = async (each: typeof device): Promise<number[]> => {
    using x = fromArray(each, generateNumbers(8, 1), [1, 1, 2, 4]);
    using out = rotary.encode(x, [{ start: 7, length: 2, step: 1 }]);
    return Array.from(await out.read());
  };
  expect(await encodeOn(otherDevice)).toEqual(await encodeOn(device));
});

test("invalid options and shapes are rejected", () =>
  onOneRank((ctx) => {
    for (const size of [3, 0, 2.5]) expect(() => new RotaryEmbedding(size)).toThrow(/headDim: expected an even number/);
    expect(() => new RotaryEmbedding(4, { theta: 1 } as never)).toThrow(/options among base/);
    using x = fromArray(ctx, generateNumbers(8, 1), [1, 1, 2, 4]);
    expect(() => new RotaryEmbedding(4).encode(x, spans)).toThrow(/x \[B,H,3,4\], received \[1,1,2,4\]$/);
    using wideInput = zeros(ctx, [1, 1, 3, 6]);
    expect(() => new RotaryEmbedding(4).encode(wideInput, spans)).toThrow(
      /received \[1,1,3,6\]; pass new RotaryEmbedding\(6\) for this head size/,
    );
  }));

test("creation allocates no tables, and encode frees its memory if the tables exceed the device's limit", async () => {
  const memoryBefore = process.memoryUsage();
  const rotary = [2 ** 31, 2 ** 40, Number.MAX_SAFE_INTEGER - 1].map((headDim) => new RotaryEmbedding(headDim));
  const { rss, arrayBuffers } = process.memoryUsage();
  expect(arrayBuffers - memoryBefore.arrayBuffers).toBeLessThan(2 ** 20);
  expect(rss - memoryBefore.rss).toBeLessThan(2 ** 26);
  for (const embedding of rotary) embedding.dispose();

  using device = cpu({ threads: 1, memoryLimit: 2 ** 26 });
  using smallRotary = new RotaryEmbedding(4);
  // A million rows of one head: 16 MiB. Each of the two tables has 8 MiB.
  using x = device.empty([1, 1, 2 ** 20, 4], "float32");
  const spansFrom = (start: number): readonly Span[] => [{ start, length: 2 ** 20, step: 1 }];
  const allocatedBytes = device.memory().allocated;
  using y = device.empty([2 ** 22], "float32");
  using z = device.empty([2 ** 22], "float32");
  using w = device.empty([2 ** 21], "float32");
  expect(() => smallRotary.encode(x, spansFrom(0))).toThrow(OutOfMemoryError);
  for (const encodedTensor of [y, z, w]) encodedTensor.dispose();
  expect(device.memory().allocated).toBe(allocatedBytes);
});

test("tables that are written in several chunks have the right angles", () =>
  onOneRank(async (ctx) => {
    const [rows, size] = [70_001, 8];
    using rotary = new RotaryEmbedding(size);
    using x = fromArray(ctx, new Float32Array(rows * size).fill(1), [1, 1, rows, size]);
    using out = rotary.encode(x, [{ start: 3, length: rows, step: 2 }]);
    const actual = await out.read();
    for (const row of [0, 65_535, 65_536, rows - 1]) {
      for (let pair = 0; pair < size / 2; pair++) {
        const angle = (3 + 2 * row) * 10_000 ** ((-2 * pair) / size);
        expect(actual[row * size + pair]).toBeCloseTo(Math.cos(angle) - Math.sin(angle), 5);
      }
    }
  }));

test("a single row is rotated as within a sequence, with a table that nearby positions share", () =>
  onOneRank(async (ctx) => {
    using rotary = new RotaryEmbedding(4);
    const values = generateNumbers(300 * 4, 3);
    using x = fromArray(ctx, values, [1, 1, 300, 4]);
    using whole = rotary.encode(x, [{ start: 0, length: 300, step: 1 }]);
    const expected = await whole.read();
    for (const start of [0, 1, 255, 256, 299]) {
      using row = fromArray(ctx, values.slice(4 * start, 4 * start + 4), [1, 1, 1, 4]);
      using turned = rotary.encode(row, [{ start, length: 1, step: 1 }]);
      expect(await turned.read()).toEqual(expected.slice(4 * start, 4 * start + 4));
    }
    const { allocated } = ctx.device.memory();
    using row = fromArray(ctx, values.slice(0, 4), [1, 1, 1, 4]);
    for (let start = 0; start < 256; start++) rotary.encode(row, [{ start, length: 1, step: 1 }]).dispose();
    expect(ctx.device.memory().allocated - allocated).toBeLessThanOrEqual(64);
  }));
