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
import { describe, expect, test } from "vitest";
import { RotaryEmbedding } from "../src/index.ts";
import { derivative, numbers, maxDifference } from "./reference/numbers.ts";
import { alone, onMesh } from "./reference/world.ts";

const [heads, dim] = [2, 6];
const spans: readonly Span[] = [
  { start: 100_000, length: 2, step: 3 },
  { start: 1, length: 1, step: 1 },
];
const places = [100_000, 100_003, 1];

/** x [1,2,3,6] turned, in float64, by the paper's definition. */
function turned(x: readonly number[], interleaved: boolean): number[] {
  const out = [...x];
  for (let row = 0; row < heads * places.length; row++) {
    for (let pair = 0; pair < dim / 2; pair++) {
      const angle = places[row % places.length]! * 10_000 ** ((-2 * pair) / dim);
      const [i, j] = interleaved ? [2 * pair, 2 * pair + 1] : [pair, pair + dim / 2];
      const [a, b] = [x[row * dim + i]!, x[row * dim + j]!];
      out[row * dim + i] = a * Math.cos(angle) - b * Math.sin(angle);
      out[row * dim + j] = b * Math.cos(angle) + a * Math.sin(angle);
    }
  }
  return out;
}

test.each([false, true])(
  "turns pairs as the paper states, and its gradient turns back; interleaved %s",
  (interleaved) =>
    alone(async (ctx) => {
      using rotary = new RotaryEmbedding(dim, { interleaved });
      const size = heads * places.length * dim;
      const [values, weights] = [numbers(size, 1), numbers(size, 2)];
      using x = fromArray(ctx, values, [1, heads, places.length, dim]);
      x.requiresGrad = true;
      using out = rotary.encode(x, spans);
      expect(maxDifference(await out.read(), turned(values, interleaved))).toBeLessThan(1e-6);
      using weight = fromArray(ctx, weights, x.shape);
      using weighted = mul(out, weight);
      using loss = sum(weighted);
      loss.backward();
      const f = (each: readonly number[]) =>
        turned(each, interleaved).reduce((total, value, i) => total + value * weights[i]!, 0);
      expect(maxDifference(await x.grad!.read(), derivative(f, values))).toBeLessThan(1e-6);
    }),
);

test("products depend on the distance alone", () =>
  alone(async (ctx) => {
    using rotary = new RotaryEmbedding(8);
    const product = async (at: number, from: number): Promise<number> => {
      const encode = (seed: number, start: number): Tensor =>
        rotary.encode(fromArray(ctx, numbers(8, seed), [1, 1, 1, 8]), [{ start, length: 1, step: 1 }]);
      return sum(mul(encode(1, at), encode(2, from))).item();
    };
    const expected = await product(7, 3);
    for (const shift of [1, 500, 100_000]) expect(await product(7 + shift, 3 + shift)).toBeCloseTo(expected, 5);
    expect(Math.abs((await product(8, 3)) - expected)).toBeGreaterThan(1e-3);
  }));

const [length, embedDim] = [11, 8];

/** Output, and gradients of x and of the parameters, put together. */
async function attend(ctx: Context, placement: PlacementName): Promise<number[][]> {
  const rotary = new RotaryEmbedding(4);
  const options = { embedDim, numHeads: 2, causal: true, backend: "ring", placement, positions: rotary } as const;
  const self = new MultiAxisAttention(ctx, { ...options, attentionAxis: 1, sequenceLength: length });
  const cross = new CrossAxisAttention(ctx, {
    ...options,
    qAxis: 1,
    kvAxis: 1,
    sequenceLength: length,
    kvSequenceLength: length,
  });
  using whole = fromArray(ctx, numbers(2 * length * embedDim, 3), [2, length, embedDim]);
  const x = shard(ctx, whole, 1, { placement }).detach();
  x.requiresGrad = true;
  using first = self.forward(x);
  using out = cross.forward(first, x);
  using seed = shard(ctx, whole, 1, { placement });
  out.backward(seed);
  for (const module of [self, cross]) reduceGradients(ctx, module);
  const parts = [out, x.grad!].map((each) => unshard(ctx, each, 1, { placement, length }));
  const parameters = [...self.parameters(), ...cross.parameters()].map(({ grad }) => grad!);
  return Promise.all([...parts, ...parameters].map(async (each) => Array.from(await each.read())));
}

describe.each(["contiguous", "zigzag", "striped"] as const)("in attention, %s", (placement) => {
  test("every mesh computes the same", async () => {
    const [expected] = await onMesh({ sp: 1 }, (ctx) => attend(ctx, placement));
    for (const mesh of [{ sp: 2 }, { sp: 4 }] satisfies Coordinate[]) {
      for (const found of await onMesh(mesh, (ctx) => attend(ctx, placement))) {
        for (const [i, values] of found.entries()) expect(maxDifference(values, expected![i]!)).toBeLessThan(5e-6);
      }
    }
  });
});

test("tables are kept for a few layouts, and given back", () =>
  alone(async (ctx) => {
    const before = ctx.device.memory().allocated;
    const rotary = new RotaryEmbedding(4);
    using x = fromArray(ctx, numbers(8, 1), [1, 1, 2, 4]);
    for (let start = 0; start < 20; start++) rotary.encode(x, [{ start, length: 2, step: 1 }]).dispose();
    rotary.dispose();
    x.dispose();
    expect(ctx.device.memory().allocated).toBe(before);
  }));

test("reports what does not fit", () =>
  alone((ctx) => {
    for (const size of [3, 0, 2.5]) expect(() => new RotaryEmbedding(size)).toThrow(/headDim: expected an even number/);
    expect(() => new RotaryEmbedding(4, { theta: 1 } as never)).toThrow(/options among base/);
    using x = fromArray(ctx, numbers(8, 1), [1, 1, 2, 4]);
    expect(() => new RotaryEmbedding(4).encode(x, spans)).toThrow(/x \[B,H,3,4\], received \[1,1,2,4\]$/);
    using wide = zeros(ctx, [1, 1, 3, 6]);
    expect(() => new RotaryEmbedding(4).encode(wide, spans)).toThrow(
      /received \[1,1,3,6\]; pass new RotaryEmbedding\(6\) for this head size/,
    );
  }));

test("tables are made for what is encoded, within the device's limit, and a head size alone takes nothing", async () => {
  const before = process.memoryUsage();
  const rotary = [2 ** 31, 2 ** 40, Number.MAX_SAFE_INTEGER - 1].map((headDim) => new RotaryEmbedding(headDim));
  const { rss, arrayBuffers } = process.memoryUsage();
  expect(arrayBuffers - before.arrayBuffers).toBeLessThan(2 ** 20);
  expect(rss - before.rss).toBeLessThan(2 ** 26);
  for (const each of rotary) each.dispose();

  using device = cpu({ threads: 1, memoryLimit: 2 ** 26 });
  using small = new RotaryEmbedding(4);
  // A million rows, all of one head's first features: 16 MiB, of which the two tables are 8 each.
  using x = device.empty([1, 1, 2 ** 20, 4], "float32");
  const at = (start: number): readonly Span[] => [{ start, length: 2 ** 20, step: 1 }];
  const held = device.memory().allocated;
  using y = device.empty([2 ** 22], "float32");
  using z = device.empty([2 ** 22], "float32");
  using w = device.empty([2 ** 21], "float32");
  expect(() => small.encode(x, at(0))).toThrow(OutOfMemoryError);
  for (const each of [y, z, w]) each.dispose();
  expect(device.memory().allocated).toBe(held);
});

test("tables in several chunks are those of one", () =>
  alone(async (ctx) => {
    const [rows, size] = [70_001, 8];
    using rotary = new RotaryEmbedding(size);
    using x = fromArray(ctx, new Float32Array(rows * size).fill(1), [1, 1, rows, size]);
    using out = rotary.encode(x, [{ start: 3, length: rows, step: 2 }]);
    const found = await out.read();
    for (const row of [0, 65_535, 65_536, rows - 1]) {
      for (let pair = 0; pair < size / 2; pair++) {
        const angle = (3 + 2 * row) * 10_000 ** ((-2 * pair) / size);
        expect(found[row * size + pair]).toBeCloseTo(Math.cos(angle) - Math.sin(angle), 5);
      }
    }
  }));
