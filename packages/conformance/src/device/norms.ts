import type { Device, DType, Tensor } from "@mosaic/core";
import type { Case } from "../check.ts";
import { normals, roundTo } from "../oracle/numbers.ts";
import { checkRounded, type MakeDevice, withDevice, tensorFrom, allocate } from "./tensors.ts";

const dtypes: readonly DType[] = ["float32", "bfloat16", "float16"];
const EPSILON = 1e-3;

/** Returns cases of layerNorm and rmsNorm, with and without parameters. */
export function normCases(make: MakeDevice): Case[] {
  return dtypes.flatMap((dtype) =>
    (["layerNorm", "rmsNorm"] as const).flatMap((kind) =>
      [true, false].map((hasParameters) => ({
        name: `${kind}${hasParameters ? "" : " without parameters"}, ${dtype}`,
        run: () => withDevice(make, (device) => checkNorm(device, { kind, dtype, hasParameters })),
      })),
    ),
  );
}

interface NormCase {
  readonly kind: "layerNorm" | "rmsNorm";
  readonly dtype: DType;
  readonly hasParameters: boolean;
}

const ROWS = 6;
const WIDTH = 21;
const shape = [2, 3, WIDTH];

async function checkNorm(device: Device, { kind, dtype, hasParameters }: NormCase): Promise<void> {
  const isCentered = kind === "layerNorm";
  const x = normals(ROWS * WIDTH, 1, dtype).map((value) => roundTo(value + 2, dtype));
  const dOut = normals(ROWS * WIDTH, 2, dtype);
  const weight = normals(WIDTH, 3, dtype);
  const bias = normals(WIDTH, 4, dtype);
  const expected = normOracle({ x, dOut, weight: hasParameters ? weight : undefined, bias, isCentered, hasParameters });

  using xTensor = tensorFrom(device, x, { shape, dtype });
  using dOutTensor = tensorFrom(device, dOut, { shape, dtype });
  using weightTensor = hasParameters ? tensorFrom(device, weight, { shape: [WIDTH], dtype }) : null;
  using biasTensor = hasParameters && isCentered ? tensorFrom(device, bias, { shape: [WIDTH], dtype }) : null;
  using out = allocate(device, shape, { dtype });
  using mean = isCentered ? allocate(device, [2, 3, 1]) : null;
  using rstd = allocate(device, [2, 3, 1]);
  const stats = { mean, rstd };
  device.kernels[kind](out, xTensor, { weight: weightTensor, bias: biasTensor, epsilon: EPSILON }, stats);
  checkRounded(await out.read(), expected.out, { dtype, roundings: 16, scale: 4, description: kind });

  using dx = allocate(device, shape, { dtype });
  using dWeight = hasParameters ? gradientTensor(device) : null;
  using dBias = hasParameters && isCentered ? gradientTensor(device) : null;
  device.kernels[`${kind}Backward`]({ dx, dWeight, dBias }, xTensor, dOutTensor, weightTensor, stats);
  checkRounded(await dx.read(), expected.dx, { dtype, roundings: 16, scale: 8, description: `${kind} dx` });
  if (dWeight)
    checkRounded(await dWeight.read(), expected.dWeight, { roundings: 16, scale: 16, description: `${kind} dWeight` });
  if (dBias)
    checkRounded(await dBias.read(), expected.dBias, { roundings: 16, scale: 8, description: `${kind} dBias` });
}

/** Creates a tensor of ones, to which a kernel adds the gradient of a parameter. */
function gradientTensor(device: Device): Tensor {
  return tensorFrom(device, new Float64Array(WIDTH).fill(1), { shape: [WIDTH] });
}

interface NormProblem {
  readonly x: Float64Array;
  readonly dOut: Float64Array;
  readonly weight: Float64Array | undefined;
  readonly bias: Float64Array;
  readonly isCentered: boolean;
  readonly hasParameters: boolean;
}

type NormReference = Readonly<Record<"out" | "dx" | "dWeight" | "dBias", Float64Array>>;

function normOracle({ x, dOut, weight, bias, isCentered, hasParameters }: NormProblem): NormReference {
  const out = new Float64Array(x.length);
  const dx = new Float64Array(x.length);
  const dWeight = new Float64Array(WIDTH).fill(1);
  const dBias = new Float64Array(WIDTH).fill(1);
  const average = (values: Float64Array) => values.reduce((sum, value) => sum + value, 0) / WIDTH;
  for (let rowOffset = 0; rowOffset < x.length; rowOffset += WIDTH) {
    const rowValues = x.subarray(rowOffset, rowOffset + WIDTH);
    const mean = isCentered ? average(rowValues) : 0;
    const rstd = 1 / Math.sqrt(average(rowValues.map((value) => (value - mean) ** 2)) + EPSILON);
    const normalizedRow = rowValues.map((value) => (value - mean) * rstd);
    const dOutRow = dOut.subarray(rowOffset, rowOffset + WIDTH);
    const dNormalizedRow = dOutRow.map((value, i) => value * (weight?.[i] ?? 1));
    const dMean = isCentered ? average(dNormalizedRow) : 0;
    const dScale = average(dNormalizedRow.map((value, i) => value * normalizedRow[i]!));
    for (let i = 0; i < WIDTH; i++) {
      out[rowOffset + i] = normalizedRow[i]! * (weight?.[i] ?? 1) + (isCentered && hasParameters ? bias[i]! : 0);
      dx[rowOffset + i] = rstd * (dNormalizedRow[i]! - dMean - normalizedRow[i]! * dScale);
      dWeight[i] = dWeight[i]! + dOutRow[i]! * normalizedRow[i]!;
      dBias[i] = dBias[i]! + dOutRow[i]!;
    }
  }
  return { out, dx, dWeight, dBias };
}
