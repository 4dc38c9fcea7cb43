import type { Tensor } from "@mosaic/core";
import { expect, test } from "vitest";
import { type CpuDevice } from "../src/index.ts";
import { dtypes, firstWrong, generator, onEveryIsa, place, type Sample, sample } from "./sample.ts";

const epsilon = 1e-5;

interface Inputs {
  readonly x: Sample;
  readonly dOut: Sample;
  readonly weight: Sample | null;
  readonly bias: Sample | null;
  readonly centred: boolean;
}

onEveryIsa("norms", (device) => {
  const shapes = [
    [1, 1],
    [3, 5],
    [2, 150, 64],
    [1000, 9],
    [3, 3000],
    [0, 8],
  ];
  const variants = [
    { centred: true, affine: true },
    { centred: true, affine: false },
    { centred: false, affine: true },
    { centred: false, affine: false },
  ];

  test.each(variants)("centred: $centred, affine: $affine", async ({ centred, affine }) => {
    const random = generator(21);
    for (const shape of shapes) {
      for (const dtype of shape[0] === 3 ? dtypes : (["float32"] as const)) {
        const layout = shape.length === 3 ? "turned" : "dense";
        const n = shape.at(-1)!;
        const inputs: Inputs = {
          x: sample(device(), shape, { dtype, layout, value: () => random() * 3 + 1 }),
          dOut: sample(device(), shape, { dtype, layout, value: random }),
          weight: affine ? sample(device(), [n], { dtype, value: random }) : null,
          bias: affine && centred ? sample(device(), [n], { dtype, layout: "spread", value: random }) : null,
          centred,
        };
        expect(await firstWrongGradient(device(), inputs), `${shape} ${dtype}`).toBeUndefined();
      }
    }
  });
});

async function firstWrongGradient(device: CpuDevice, inputs: Inputs): Promise<string | undefined> {
  const { x, weight, bias, centred } = inputs;
  const { shape, dtype } = x.x;
  const n = shape.at(-1)!;
  const column = [...shape.slice(0, -1), 1];
  const stats = { mean: centred ? device.empty(column, "float32") : null, rstd: device.empty(column, "float32") };
  using out = place(device, shape, dtype, "dense");
  using dx = place(device, shape, dtype, "dense");
  const dWeight = weight && device.empty([n], "float32");
  const dBias = bias && device.empty([n], "float32");
  for (const each of [dWeight, dBias]) if (each) device.kernels.fill(each, 1);
  const norm = { weight: weight?.x ?? null, bias: bias?.x ?? null, epsilon };
  const { kernels } = device;
  kernels[centred ? "layerNorm" : "rmsNorm"](out, x.x, norm, stats);
  kernels[centred ? "layerNormBackward" : "rmsNormBackward"](
    { dx, dWeight, dBias },
    x.x,
    inputs.dOut.x,
    norm.weight,
    stats,
  );
  const want = reference(inputs, n);
  const scale = { tolerance: 4e-6, dtype };
  const rowsSeen = Math.max(1, x.values.length / n);
  const sums = { tolerance: 2e-6, magnitude: new Array<number>(n).fill(1 + Math.sqrt(rowsSeen) * 3) };
  const check = async (name: string, got: Tensor | null, values: number[], how: typeof scale | typeof sums) => {
    const wrong = got && firstWrong(await got.read(), values, how);
    return wrong ? `${name}: ${wrong}` : undefined;
  };
  return (
    (await check("rstd", stats.rstd, want.rstd, { tolerance: 4e-6, dtype: "float32" })) ??
    (await check("out", out, want.out, { ...scale, magnitude: want.out.map((value) => Math.abs(value) + 1) })) ??
    (await check("dx", dx, want.dx, {
      ...scale,
      magnitude: want.dx.map((_, i) => 4 * want.rstd[Math.floor(i / n)]!),
    })) ??
    (await check("dWeight", dWeight, want.dWeight, sums)) ??
    (await check("dBias", dBias, want.dBias, sums))
  );
}

function reference(inputs: Inputs, n: number): Record<"out" | "dx" | "rstd" | "dWeight" | "dBias", number[]> {
  const { x, dOut, weight, bias, centred } = inputs;
  const dWeight = new Array<number>(n).fill(1);
  const dBias = new Array<number>(n).fill(1);
  const [out, dx, rstds]: number[][] = [[], [], []];
  for (let start = 0; start < x.values.length; start += n) {
    const row = x.values.slice(start, start + n);
    const mean = centred ? row.reduce((a, b) => a + b, 0) / n : 0;
    const rstd = 1 / Math.sqrt(row.reduce((a, b) => a + (b - mean) ** 2, 0) / n + epsilon);
    const unit = row.map((value) => (value - mean) * rstd);
    const dy = dOut.values.slice(start, start + n);
    const scaled = dy.map((value, i) => value * (weight?.values[i] ?? 1));
    const level = centred ? scaled.reduce((a, b) => a + b, 0) / n : 0;
    const along = scaled.reduce((a, b, i) => a + b * unit[i]!, 0) / n;
    rstds!.push(rstd);
    for (let i = 0; i < n; i++) {
      out!.push(unit[i]! * (weight?.values[i] ?? 1) + (bias?.values[i] ?? 0));
      dx!.push(rstd * (scaled[i]! - level - unit[i]! * along));
      dWeight[i]! += unit[i]! * dy[i]!;
      dBias[i]! += dy[i]!;
    }
  }
  return { out: out!, dx: dx!, rstd: rstds!, dWeight, dBias };
}
