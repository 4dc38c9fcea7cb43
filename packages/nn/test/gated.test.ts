import { noGrad, OptionError, randn, type Tensor } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { GeGLU, SwiGLU } from "../src/index.ts";
import { checkLayer, linear } from "./reference/gradients.ts";
import { normalCdf } from "./reference/normal.ts";
import { maxDifference } from "./reference/numbers.ts";
import { onOneRank, onMesh } from "./reference/world.ts";

const sizes = { embedDim: 3, hiddenDim: 4 };
const silu = (x: number) => x / (1 + Math.exp(-x));
const gelu = (x: number) => x * normalCdf(x);
const geluTanh = (x: number) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));

type ParameterValues = Readonly<Record<string, readonly number[]>>;

/** down(f(gate(x)) · up(x)) in float64. */
function referenceGated(x: readonly number[], p: ParameterValues, f: (x: number) => number): number[] {
  const layer = (name: string, input: readonly number[], out: number) =>
    linear(input, p[`${name}.weight`]!, p[`${name}.bias`] ?? new Array<number>(out).fill(0));
  const up = layer("up_proj", x, sizes.hiddenDim);
  const hidden = layer("gate_proj", x, sizes.hiddenDim).map((value, i) => f(value) * up[i]!);
  return layer("down_proj", hidden, sizes.embedDim);
}

describe("forward and every gradient match float64", () => {
  test.each([true, false])("SwiGLU, bias %s", (bias) =>
    onOneRank(async (ctx) => {
      using module = new SwiGLU(ctx, { ...sizes, bias });
      const reference = (x: readonly number[], p: ParameterValues) => referenceGated(x, p, silu);
      await checkLayer(ctx, { module, forward: (x) => module.forward(x), shape: [2, 2, 3], reference });
    }),
  );

  test.each([
    ["none", gelu],
    ["tanh", geluTanh],
  ] as const)("GeGLU, approximate %s", (approximate, f) =>
    onOneRank(async (ctx) => {
      using module = new GeGLU(ctx, { ...sizes, approximate });
      const reference = (x: readonly number[], p: ParameterValues) => referenceGated(x, p, f);
      await checkLayer(ctx, { module, forward: (x) => module.forward(x), shape: [2, 3], reference });
    }),
  );
});

test("a bfloat16 SwiGLU matches float64 up to bfloat16 rounding", () =>
  onOneRank(async (ctx) => {
    using module = new SwiGLU(ctx, { ...sizes, dtype: "bfloat16" });
    using x = randn(ctx, [64, 3]);
    using bfloat16Input = x.to("bfloat16");
    const input = Array.from(await bfloat16Input.read());
    const p = Object.fromEntries(
      await Promise.all(
        module.namedParameters().map(async ([name, each]) => [name, Array.from(await each.read())] as const),
      ),
    );
    using out = module.forward(bfloat16Input);
    expect(out.dtype).toBe("bfloat16");
    expect(maxDifference(await out.read(), referenceGated(input, p, silu))).toBeLessThan(4 * 2 ** -8);
  }));

test("SwiGLU saves only gate, up and their product for the backward", () =>
  onOneRank((ctx) => {
    using module = new SwiGLU(ctx, { embedDim: 8, hiddenDim: 1024 });
    const rows = 512;
    using x = randn(ctx, [rows, 8]);
    const measureHeldBytes = (runForward: () => Tensor): number => {
      const allocatedBefore = ctx.device.memory().allocated;
      using out = runForward();
      return ctx.device.memory().allocated - allocatedBefore - 4 * out.size;
    };
    expect(measureHeldBytes(() => noGrad(() => module.forward(x)))).toBe(0);
    // gate, up, and their product, which the down projection saves.
    expect(measureHeldBytes(() => module.forward(x))).toBe(3 * 4 * rows * 1024);
  }));

test("a forward hook of the up projection receives its output before the gate is applied", () =>
  onOneRank(async (ctx) => {
    using module = new SwiGLU(ctx, { ...sizes, bias: true });
    using x = randn(ctx, [2, 3]);
    using expected = module.forward(x);
    module.upProjection.registerForwardHook((up) => (up as Tensor).scale(2));
    using doubled = module.forward(x);
    const bias = await module.downProjection.bias!.read();
    const [single, double] = [await expected.read(), await doubled.read()];
    for (const [i, value] of single.entries()) {
      const b = bias[i % 3]!;
      expect(double[i]! - b).toBeCloseTo(2 * (value - b), 5);
    }
  }));

test("dropout is the same on every mesh", async () => {
  const runSharded = (shards: number) =>
    onMesh({ sp: shards }, async (ctx) => {
      using module = new SwiGLU(ctx, { ...sizes, dropout: 0.5 });
      using fullInput = randn(ctx, [1, 8, 3], { seed: 1, stream: 1 });
      const rows = 8 / shards;
      using x = fullInput.slice(1, ctx.rank * rows, (ctx.rank + 1) * rows);
      using out = module.forward(x);
      return Array.from(await out.read());
    });
  const [expected] = await runSharded(1);
  expect(expected!.filter((value) => value === 0).length).toBeGreaterThan(0);
  expect(maxDifference((await runSharded(4)).flat(), expected!)).toBeLessThan(1e-6);
});

test("an empty shard gives an empty result, and invalid options are rejected", () =>
  onOneRank((ctx) => {
    using module = new SwiGLU(ctx, sizes);
    using x = randn(ctx, [0, 3]);
    x.requiresGrad = true;
    using out = module.forward(x);
    expect(out.shape).toEqual([0, 3]);
    using loss = out.sum();
    loss.backward();
    expect(x.grad!.shape).toEqual([0, 3]);
    expect(() => new SwiGLU(ctx, { embedDim: 3 } as never)).toThrow(OptionError);
    expect(() => new SwiGLU(ctx, { ...sizes, approximate: "tanh" } as never)).toThrow(OptionError);
    expect(() => new GeGLU(ctx, { ...sizes, approximate: "erf" as never })).toThrow(OptionError);
  }));
