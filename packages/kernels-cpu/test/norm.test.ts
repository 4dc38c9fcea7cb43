import type { Tensor } from "@mosaic/core";
import { expect, test } from "vitest";
import { type CpuDevice } from "../src/index.ts";
import {
  dtypes,
  findMismatch,
  createGenerator,
  onEveryIsa,
  allocateWithLayout,
  type Sample,
  createSample,
} from "./sample.ts";

const epsilon = 1e-5;

interface Inputs {
  readonly x: Sample;
  readonly dOut: Sample;
  readonly weight: Sample | null;
  readonly bias: Sample | null;
  readonly centered: boolean;
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
    { centered: true, affine: true },
    { centered: true, affine: false },
    { centered: false, affine: true },
    { centered: false, affine: false },
  ];

  test.each(variants)(
    "compute outputs and gradients with centered: $centered, affine: $affine",
    async ({ centered, affine }) => {
      const random = createGenerator(21);
      for (const shape of shapes) {
        for (const dtype of shape[0] === 3 ? dtypes : (["float32"] as const)) {
          const layout = shape.length === 3 ? "turned" : "dense";
          const n = shape.at(-1)!;
          const inputs: Inputs = {
            x: createSample(device(), shape, { dtype, layout, value: () => random() * 3 + 1 }),
            dOut: createSample(device(), shape, { dtype, layout, value: random }),
            weight: affine ? createSample(device(), [n], { dtype, value: random }) : null,
            bias: affine && centered ? createSample(device(), [n], { dtype, layout: "spread", value: random }) : null,
            centered,
          };
          expect(await firstWrongGradient(device(), inputs), `${shape} ${dtype}`).toBeUndefined();
        }
      }
    },
  );
});

async function firstWrongGradient(device: CpuDevice, inputs: Inputs): Promise<string | undefined> {
  const { x, weight, bias, centered } = inputs;
  const { shape, dtype } = x.x;
  const n = shape.at(-1)!;
  const columnShape = [...shape.slice(0, -1), 1];
  const stats = {
    mean: centered ? device.empty(columnShape, "float32") : null,
    rstd: device.empty(columnShape, "float32"),
  };
  using out = allocateWithLayout(device, shape, dtype, "dense");
  using dx = allocateWithLayout(device, shape, dtype, "dense");
  const dWeight = weight && device.empty([n], "float32");
  const dBias = bias && device.empty([n], "float32");
  for (const gradient of [dWeight, dBias]) if (gradient) device.kernels.fill(gradient, 1);
  const norm = { weight: weight?.x ?? null, bias: bias?.x ?? null, epsilon };
  const { kernels } = device;
  kernels[centered ? "layerNorm" : "rmsNorm"](out, x.x, norm, stats);
  kernels[centered ? "layerNormBackward" : "rmsNormBackward"](
    { dx, dWeight, dBias },
    x.x,
    inputs.dOut.x,
    norm.weight,
    stats,
  );
  const expected = reference(inputs, n);
  const elementLimits = { tolerance: 4e-6, dtype };
  const rowsSeen = Math.max(1, x.values.length / n);
  const sumLimits = { tolerance: 2e-6, magnitude: new Array<number>(n).fill(1 + Math.sqrt(rowsSeen) * 3) };
  const checkGradient = async (
    name: string,
    actual: Tensor | null,
    values: number[],
    limits: typeof elementLimits | typeof sumLimits,
  ) => {
    const mismatch = actual && findMismatch(await actual.read(), values, limits);
    return mismatch ? `${name}: ${mismatch}` : undefined;
  };
  return (
    (await checkGradient("rstd", stats.rstd, expected.rstd, { tolerance: 4e-6, dtype: "float32" })) ??
    (await checkGradient("out", out, expected.out, {
      ...elementLimits,
      magnitude: expected.out.map((value) => Math.abs(value) + 1),
    })) ??
    (await checkGradient("dx", dx, expected.dx, {
      ...elementLimits,
      magnitude: expected.dx.map((_, i) => 4 * expected.rstd[Math.floor(i / n)]!),
    })) ??
    (await checkGradient("dWeight", dWeight, expected.dWeight, sumLimits)) ??
    (await checkGradient("dBias", dBias, expected.dBias, sumLimits))
  );
}

function reference(inputs: Inputs, n: number): Record<"out" | "dx" | "rstd" | "dWeight" | "dBias", number[]> {
  const { x, dOut, weight, bias, centered } = inputs;
  const dWeight = new Array<number>(n).fill(1);
  const dBias = new Array<number>(n).fill(1);
  const [out, dx, rstds]: number[][] = [[], [], []];
  for (let start = 0; start < x.values.length; start += n) {
    const row = x.values.slice(start, start + n);
    const mean = centered ? row.reduce((a, b) => a + b, 0) / n : 0;
    const rstd = 1 / Math.sqrt(row.reduce((a, b) => a + (b - mean) ** 2, 0) / n + epsilon);
    const normalizedRow = row.map((value) => (value - mean) * rstd);
    const dy = dOut.values.slice(start, start + n);
    const weightedDy = dy.map((value, i) => value * (weight?.values[i] ?? 1));
    const meanDy = centered ? weightedDy.reduce((a, b) => a + b, 0) / n : 0;
    const projection = weightedDy.reduce((a, b, i) => a + b * normalizedRow[i]!, 0) / n;
    rstds!.push(rstd);
    for (let i = 0; i < n; i++) {
      out!.push(normalizedRow[i]! * (weight?.values[i] ?? 1) + (bias?.values[i] ?? 0));
      dx!.push(rstd * (weightedDy[i]! - meanDy - normalizedRow[i]! * projection));
      dWeight[i]! += normalizedRow[i]! * dy[i]!;
      dBias[i]! += dy[i]!;
    }
  }
  return { out: out!, dx: dx!, rstd: rstds!, dWeight, dBias };
}
