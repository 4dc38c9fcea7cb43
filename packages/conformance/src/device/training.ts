import type { AdamStep, Device, DType, Tensor } from "@mosaic/core";
import { type Case, checkEqual } from "../check.ts";
import { integer, normals, roundTo, uniforms } from "../oracle/numbers.ts";
import {
  checkRounded,
  type StorageOrder,
  storageOrders,
  type MakeDevice,
  withDevice,
  tensorFrom,
  allocate,
} from "./tensors.ts";

const dtypes: readonly DType[] = ["float32", "bfloat16", "float16"];

/** Returns cases of the kernels of training: dropout, rows by index, cross-entropy and optimizer steps. */
export function trainingCases(make: MakeDevice): Case[] {
  return [
    ...dtypes.flatMap((dtype) => [
      { name: `dropout, ${dtype}`, run: () => withDevice(make, (device) => checkDropout(device, dtype)) },
      {
        name: `gatherRows and scatterAddRows, ${dtype}`,
        run: () => withDevice(make, (device) => checkIndexedRows(device, dtype)),
      },
      ...[0, LARGE_LOGIT].map((center) => ({
        name: `crossEntropy of logits around ${center}, ${dtype}`,
        run: () => withDevice(make, (device) => checkCrossEntropy(device, { dtype, center })),
      })),
      { name: `adamW, ${dtype}`, run: () => withDevice(make, (device) => checkAdam(device, "adamW", dtype)) },
      {
        name: `scheduleFree, ${dtype}`,
        run: () => withDevice(make, (device) => checkAdam(device, "scheduleFree", dtype)),
      },
    ]),
    {
      name: "adamW keeps gradients that are much smaller than their mean",
      run: () => withDevice(make, checkSmallGradients),
    },
    { name: "an index out of range is reported as an error", run: () => withDevice(make, checkOutOfRangeIndex) },
    { name: "the last row of more than 2^24", run: () => withDevice(make, checkLastRow) },
  ];
}

/** Checks that a shard has the zeros of the whole tensor, that kept values are scaled, and that in-place calls work. */
async function checkDropout(device: Device, dtype: DType): Promise<void> {
  const [rows, columns] = [6, 70];
  const dropoutSpec = { probability: 0.3, seed: 11, stream: 4 };
  const values = normals(2 * rows * columns, 1, dtype);
  using uniform = allocate(device, [values.length]);
  device.kernels.random(uniform, { kind: "uniform", low: 0, high: 1, ...dropoutSpec });
  const uniformValues = await uniform.read();
  const expected = values.map((x, i) => (uniformValues[i]! < Math.fround(0.3) ? 0 : roundTo(x / 0.7, dtype)));
  for (const storageOrder of storageOrders) {
    using x = tensorFrom(device, values, { shape: [2, rows, columns], dtype, storageOrder });
    using out = allocate(device, [2, rows, columns], { dtype, storageOrder });
    device.kernels.dropout(out, x, { ...dropoutSpec, offset: 0, strides: [rows * columns, columns, 1] });
    checkRounded(await out.read(), expected, { dtype, description: `dropout ${storageOrder}` });
    // Rows 1, 3 and 5 of the second matrix, as a shard with an offset.
    using matrix = x.slice(0, 1);
    using shardInput = matrix.slice(1, 1, rows, 2);
    using shardOutput = allocate(device, [1, 3, columns], { dtype, storageOrder });
    device.kernels.dropout(shardOutput, shardInput, {
      ...dropoutSpec,
      offset: (rows + 1) * columns,
      strides: [rows * columns, 2 * columns, 1],
    });
    using outSlice = out.slice(0, 1).slice(1, 1, rows, 2);
    checkEqual(await shardOutput.read(), await outSlice.read(), `dropout of a shard, ${storageOrder}`);
    device.kernels.dropout(x, x, { ...dropoutSpec, offset: 0, strides: [rows * columns, columns, 1] });
    checkEqual(await x.read(), await out.read(), `dropout in place, ${storageOrder}`);
  }
}

/** Checks gatherRows, and scatterAddRows onto existing values. */
async function checkIndexedRows(device: Device, dtype: DType): Promise<void> {
  const [numRows, width] = [9, 37];
  const nextUniform = uniforms(3);
  const indices = Array.from({ length: 10 }, () => integer(nextUniform, numRows));
  const table = normals(numRows * width, 4, dtype);
  const rows = normals(10 * width, 5, dtype);
  const expectedGatheredRows = Float64Array.from(
    { length: 10 * width },
    (_, i) => table[indices[Math.floor(i / width)]! * width + (i % width)]!,
  );
  const expectedScatteredSums = new Float64Array(numRows * width).fill(2);
  for (const [i, value] of rows.entries()) {
    const elementIndex = indices[Math.floor(i / width)]! * width + (i % width);
    expectedScatteredSums[elementIndex] = expectedScatteredSums[elementIndex]! + value;
  }
  for (const storageOrder of storageOrders) {
    using index = tensorFrom(device, indices, { shape: [2, 5], dtype, storageOrder });
    using weights = tensorFrom(device, table, { shape: [numRows, width], dtype, storageOrder });
    using out = allocate(device, [2, 5, width], { dtype, storageOrder });
    device.kernels.gatherRows(out, weights, index);
    checkRounded(await out.read(), expectedGatheredRows, { description: `gatherRows ${storageOrder}`, roundings: 0 });
    using x = tensorFrom(device, rows, { shape: [2, 5, width], dtype, storageOrder });
    using scatterOut = tensorFrom(device, new Float64Array(numRows * width).fill(2), {
      shape: [numRows, width],
      storageOrder,
    });
    device.kernels.scatterAddRows(scatterOut, x, index);
    checkRounded(await scatterOut.read(), expectedScatteredSums, {
      description: `scatterAddRows ${storageOrder}`,
      scale: 10,
    });
  }
}

const NUM_CLASSES = 21;
const IGNORE_INDEX = -100;
/** Float32 numbers of this magnitude are multiples of 2⁻¹¹, so that lse in float32 is less accurate than the softmax. */
const LARGE_LOGIT = 4096;

async function checkCrossEntropy(
  device: Device,
  { dtype, center }: { readonly dtype: DType; readonly center: number },
): Promise<void> {
  const nextUniform = uniforms(6);
  const x = normals(8 * NUM_CLASSES, 7, dtype).map((value) => roundTo(center + 20 * value, dtype));
  const targets = Array.from({ length: 8 }, (_, i) => (i === 3 ? IGNORE_INDEX : integer(nextUniform, NUM_CLASSES)));
  const dLoss = normals(8, 8);
  for (const smoothing of [0, 0.1]) {
    const expected = lossOracle(x, { targets, dLoss, smoothing });
    for (const storageOrder of storageOrders) {
      using logits = tensorFrom(device, x, { shape: [2, 4, NUM_CLASSES], dtype, storageOrder });
      using target = tensorFrom(device, targets, { shape: [2, 4], storageOrder });
      const lossOutputs = {
        loss: allocate(device, [2, 4], { storageOrder }),
        lse: allocate(device, [2, 4]),
        counted: allocate(device, [2, 4]),
      };
      const spec = { smoothing, ignored: IGNORE_INDEX };
      device.kernels.crossEntropy(lossOutputs, logits, target, spec);
      checkRounded(await lossOutputs.loss.read(), expected.loss, {
        scale: 60,
        description: `crossEntropy ${storageOrder}`,
      });
      checkEqual(
        await lossOutputs.counted.read(),
        targets.map((each) => (each === IGNORE_INDEX ? 0 : 1)),
        "rows with a target class",
      );
      using dLossTensor = tensorFrom(device, dLoss, { shape: [2, 4], storageOrder });
      using dx = allocate(device, [2, 4, NUM_CLASSES], { dtype, storageOrder });
      device.kernels.crossEntropyBackward(dx, { x: logits, target, lse: lossOutputs.lse }, dLossTensor, spec);
      const description = `crossEntropy backward ${storageOrder}`;
      checkRounded(await dx.read(), expected.dx, { dtype, roundings: 64, scale: 3, description });
      for (const each of Object.values(lossOutputs)) each.dispose();
    }
  }
}

interface LossProblem {
  readonly targets: readonly number[];
  readonly dLoss: Float64Array;
  readonly smoothing: number;
}

function lossOracle(
  x: Float64Array,
  { targets, dLoss, smoothing }: LossProblem,
): { loss: Float64Array; dx: Float64Array } {
  const loss = new Float64Array(targets.length);
  const dx = new Float64Array(x.length);
  for (const [row, target] of targets.entries()) {
    if (target === IGNORE_INDEX) continue;
    const rowLogits = x.subarray(row * NUM_CLASSES, (row + 1) * NUM_CLASSES);
    const maxLogit = Math.max(...rowLogits);
    const lse = maxLogit + Math.log(rowLogits.reduce((sum, value) => sum + Math.exp(value - maxLogit), 0));
    for (const [i, value] of rowLogits.entries()) {
      const targetProbability = smoothing / NUM_CLASSES + (i === target ? 1 - smoothing : 0);
      loss[row] = loss[row]! + targetProbability * (lse - value);
      dx[row * NUM_CLASSES + i] = dLoss[row]! * (Math.exp(value - lse) - targetProbability);
    }
  }
  return { loss, dx };
}

const PARAMETER_SIZE = 5 * 7 * 3;

async function checkAdam(device: Device, kind: AdamStep["kind"], dtype: DType): Promise<void> {
  const step: AdamStep = {
    kind,
    rate: 0.01,
    beta1: 0.9,
    beta2: 0.99,
    epsilon: 1e-8,
    decay: 0.1,
    correction1: 0.3,
    correction2: 0.05,
    mix: 0.25,
  };
  const [p, g, m] = [1, 2, 3].map((seed) => normals(PARAMETER_SIZE, seed, seed === 3 ? "float32" : dtype));
  const v = normals(PARAMETER_SIZE, 4).map((x) => Math.fround(x * x));
  const expected = stepOracle(step, { p: p!, g: g!, m: m!, v });
  const shape = [5, 7, 3];
  const makeOperand = (values: Float64Array, storageOrder: StorageOrder, operandDType: DType = "float32"): Tensor =>
    tensorFrom(device, values, { shape, dtype: operandDType, storageOrder });
  for (const storageOrder of storageOrders) {
    using parameter = makeOperand(p!, storageOrder, dtype);
    using gradient = makeOperand(g!, storageOrder, dtype);
    using firstMoment = makeOperand(m!, storageOrder);
    using secondMoment = makeOperand(v, storageOrder);
    device.kernels.adam({ parameter, first: firstMoment, second: secondMoment }, gradient, step);
    checkRounded(await parameter.read(), expected.p, {
      dtype,
      scale: 1,
      description: `${kind} ${storageOrder}: parameter`,
    });
    checkRounded(await firstMoment.read(), expected.m, { scale: 1, description: `${kind} ${storageOrder}: first` });
    checkRounded(await secondMoment.read(), expected.v, { description: `${kind} ${storageOrder}: second` });
  }
}

/** Checks that a mean of gradients that β₁ weights by little or nothing does not absorb a much smaller gradient. */
async function checkSmallGradients(device: Device): Promise<void> {
  const gradients = normals(PARAMETER_SIZE, 2).map((g) => Math.fround(1e-3 * g));
  const means = normals(PARAMETER_SIZE, 3).map((m) => Math.fround(1e9 * m));
  for (const beta1 of [0, 1e-13]) {
    using parameter = tensorFrom(device, new Float64Array(PARAMETER_SIZE), { shape: [PARAMETER_SIZE] });
    using first = tensorFrom(device, means, { shape: [PARAMETER_SIZE] });
    using second = tensorFrom(device, new Float64Array(PARAMETER_SIZE), { shape: [PARAMETER_SIZE] });
    using gradient = tensorFrom(device, gradients, { shape: [PARAMETER_SIZE] });
    const factors = { epsilon: 1e-8, decay: 0, correction1: 1, correction2: 1, mix: 0 };
    device.kernels.adam({ parameter, first, second }, gradient, {
      kind: "adamW",
      rate: 0.01,
      beta1,
      beta2: 0.99,
      ...factors,
    });
    const expected = gradients.map((g, i) => (1 - beta1) * g + beta1 * means[i]!);
    checkRounded(await first.read(), expected, { scale: 1e-3, description: `first, for beta1 = ${beta1}` });
  }
}

type AdamState = Readonly<Record<"p" | "m" | "v", Float64Array>>;

function stepOracle(step: AdamStep, { p, g, m, v }: AdamState & { g: Float64Array }): AdamState {
  const { rate, beta1, beta2, epsilon, decay, correction1, correction2, mix } = step;
  const secondMoment = v.map((x, i) => beta2 * x + (1 - beta2) * g[i]! ** 2);
  const denominator = secondMoment.map((x) => Math.sqrt(x / correction2) + epsilon);
  if (step.kind === "adamW") {
    const firstMoment = m.map((x, i) => beta1 * x + (1 - beta1) * g[i]!);
    const updatedParameter = p.map(
      (x, i) => x * (1 - rate * decay) - ((rate / correction1) * firstMoment[i]!) / denominator[i]!,
    );
    return { p: updatedParameter, m: firstMoment, v: secondMoment };
  }
  const update = g.map((x, i) => x / denominator[i]! + decay * p[i]!);
  const nextParameter = p.map((x, i) => x + mix * (m[i]! - x) + rate * (beta1 * (1 - mix) - 1) * update[i]!);
  return { p: nextParameter, m: m.map((z, i) => z - rate * update[i]!), v: secondMoment };
}

/** Checks the last of 2^24 + 1 rows. float32 can represent its index, but not the number of rows. */
async function checkLastRow(device: Device): Promise<void> {
  const lastRow = 2 ** 24;
  using row = tensorFrom(device, [1, 2], { shape: [1, 2] });
  using table = row.expand([lastRow + 1, 2]);
  using index = tensorFrom(device, [lastRow], { shape: [1] });
  using out = allocate(device, [1, 2]);
  device.kernels.gatherRows(out, table, index);
  checkEqual(await out.read(), [1, 2], "gatherRows");
}

async function checkOutOfRangeIndex(device: Device): Promise<void> {
  using table = tensorFrom(device, [1, 2, 3], { shape: [3, 1] });
  using index = tensorFrom(device, [0, 1_234_567], { shape: [2] });
  using out = allocate(device, [2, 1]);
  let failure: unknown;
  try {
    device.kernels.gatherRows(out, table, index);
    await out.read();
  } catch (error) {
    failure = error;
  }
  const message = failure instanceof Error ? failure.message : "nothing";
  if (!/gatherRows.*from 0 to 2.*received 1234567/.test(message)) {
    throw new Error(`an index out of range: expected an error that names kernel, range and index, received ${message}`);
  }
}
