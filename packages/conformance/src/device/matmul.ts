import type { Device, DType, Shape, Tensor } from "@mosaic/core";
import { type Case, checkEqual } from "../check.ts";
import { epsilon, normals } from "../oracle/numbers.ts";
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

interface MatmulCase {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly dtype: DType;
}

/** Sizes around those of register tiles and blocks, and 0. */
const sizes = [
  [1, 1, 1],
  [5, 7, 3],
  [16, 16, 16],
  [33, 17, 65],
  [70, 130, 40],
  [1, 64, 300],
  [9, 5, 1100],
  [6, 5, 0],
  [0, 5, 6],
] as const;

/**
 * Returns cases of matmul (sizes, transposes, broadcasting, accumulation) and of linear (bias, activation, gate, saved
 * pre-activation).
 */
export function matmulCases(make: MakeDevice): Case[] {
  return dtypes.flatMap((dtype) => [
    ...sizes.map(([m, n, k]) => ({
      name: `matmul ${m}×${k} · ${k}×${n}, ${dtype}`,
      run: () => withDevice(make, (device) => checkMatmul(device, { m, n, k, dtype })),
    })),
    ...epilogues.map((epilogue) => ({
      name: `linear: ${describeEpilogue(epilogue)}, ${dtype}`,
      run: () => withDevice(make, (device) => checkLinear(device, epilogue, dtype)),
    })),
    { name: `batched matmul, ${dtype}`, run: () => withDevice(make, (device) => checkBatch(device, dtype)) },
    ...(dtype === "float32"
      ? []
      : [
          {
            name: `linear: a float32 bias is not rounded before the sum, ${dtype}`,
            run: () => withDevice(make, (device) => checkFloat32Bias(device, dtype)),
          },
        ]),
  ]);
}

interface EpilogueCase {
  readonly hasBias: boolean;
  readonly activation: "relu" | "tanh" | null;
  readonly hasGate: boolean;
  readonly isPreActivationSaved: boolean;
}

const epilogues: readonly EpilogueCase[] = [
  { hasBias: true, activation: null, hasGate: false, isPreActivationSaved: false },
  { hasBias: true, activation: "relu", hasGate: false, isPreActivationSaved: false },
  { hasBias: true, activation: "tanh", hasGate: false, isPreActivationSaved: true },
  { hasBias: false, activation: "tanh", hasGate: false, isPreActivationSaved: false },
  { hasBias: false, activation: null, hasGate: false, isPreActivationSaved: true },
  { hasBias: true, activation: "tanh", hasGate: true, isPreActivationSaved: true },
  { hasBias: false, activation: "relu", hasGate: true, isPreActivationSaved: false },
  { hasBias: false, activation: null, hasGate: true, isPreActivationSaved: false },
];

function describeEpilogue({ hasBias, activation, hasGate, isPreActivationSaved }: EpilogueCase): string {
  const parts = [hasBias ? "bias" : "no bias", activation ?? "no activation"];
  if (hasGate) parts.push("a gate");
  if (isPreActivationSaved) parts.push("saves the pre-activation");
  return parts.join(", ");
}

const activations = { relu: (x: number) => Math.max(x, 0), tanh: Math.tanh } as const;

async function checkLinear(device: Device, epilogue: EpilogueCase, dtype: DType): Promise<void> {
  const { hasBias, activation, hasGate, isPreActivationSaved } = epilogue;
  for (const [m, n, k] of sizes) {
    const [a, b, c] = [normals(m * k, 1, dtype), normals(k * n, 2, dtype), normals(n, 3, dtype)];
    const sums = matmulOracle(a, b, { m, n, k }).map((value, i) => value + (hasBias ? c[i % n]! : 0));
    using x = tensorFrom(device, a, { shape: [m, k], dtype });
    using y = tensorFrom(device, b, { shape: [k, n], dtype, storageOrder: "reversed" });
    using bias = hasBias ? tensorFrom(device, c, { shape: [n], dtype }) : null;
    using out = allocate(device, [m, n], { dtype });
    using preActivation = isPreActivationSaved ? allocate(device, [m, n], { dtype }) : null;
    const gateValues = normals(m * n, 4, dtype);
    using gate = hasGate ? tensorFrom(device, gateValues, { shape: [m, n], dtype }) : null;
    device.kernels.linear(out, x, y, { bias, activation, gate, preActivation });
    const tolerance = { dtype, roundings: 4 + Math.sqrt(k), scale: Math.sqrt(k) + 1 };
    const description = `${m}×${k} · ${k}×${n}`;
    if (preActivation)
      checkRounded(await preActivation.read(), sums, { ...tolerance, description: `sums of ${description}` });
    // A device may round the sums before the activation or the gate.
    const outTolerance = { ...tolerance, scale: (tolerance.scale * epsilon[dtype]) / epsilon.float32 };
    const activate = activation === null ? (value: number) => value : activations[activation];
    const expected = sums.map((value, i) => (hasGate ? activate(gateValues[i]!) * value : activate(value)));
    checkRounded(await out.read(), expected, { ...outTolerance, description });
  }
}

/** The bias is between two numbers of the dtype. With the product, the sum is the larger one. */
async function checkFloat32Bias(device: Device, dtype: DType): Promise<void> {
  const halfStep = dtype === "bfloat16" ? 2 ** -8 : 2 ** -11;
  using x = tensorFrom(device, [halfStep], { shape: [1, 1], dtype });
  using y = tensorFrom(device, [1], { shape: [1, 1], dtype });
  using bias = tensorFrom(device, [1 + halfStep], { shape: [1] });
  using out = allocate(device, [1, 1], { dtype });
  device.kernels.linear(out, x, y, { bias, activation: null, gate: null, preActivation: null });
  checkEqual(await out.read(), [1 + 2 * halfStep], "the sum of a product and a float32 bias");
}

async function checkMatmul(device: Device, { m, n, k, dtype }: MatmulCase): Promise<void> {
  const a = normals(m * k, 1, dtype);
  const b = normals(k * n, 2, dtype);
  const c = normals(m * n, 3, dtype);
  const expected = matmulOracle(a, b, { m, n, k });
  const expectedAccumulation = expected.map((value, i) => value + c[i]!);
  for (const storageOrder of storageOrders) {
    using x = tensorFrom(device, a, { shape: [m, k], dtype, storageOrder });
    using y = tensorFrom(device, b, { shape: [k, n], dtype, storageOrder: nextStorageOrder(storageOrder) });
    using out = allocate(device, [m, n], { dtype });
    device.kernels.matmul(out, x, y, false);
    const tolerance = { dtype, roundings: 4 + Math.sqrt(k), scale: Math.sqrt(k) };
    checkRounded(await out.read(), expected, { ...tolerance, description: `product ${storageOrder}` });
    using sum = tensorFrom(device, c, { shape: [m, n], dtype });
    device.kernels.matmul(sum, x, y, true);
    checkRounded(await sum.read(), expectedAccumulation, {
      ...tolerance,
      description: `product added, ${storageOrder}`,
    });
  }
}

/** Returns a different storage order for the second operand, so that all pairs of transposes occur. */
function nextStorageOrder(storageOrder: StorageOrder): StorageOrder {
  return storageOrders[(storageOrders.indexOf(storageOrder) + 1) % storageOrders.length]!;
}

async function checkBatch(device: Device, dtype: DType): Promise<void> {
  const [m, n, k] = [9, 10, 11];
  const a = normals(6 * m * k, 4, dtype);
  const b = normals(3 * k * n, 5, dtype);
  const expected = new Float64Array(6 * m * n);
  for (let i = 0; i < 6; i++) {
    const leftMatrix = a.subarray(i * m * k, (i + 1) * m * k);
    expected.set(matmulOracle(leftMatrix, b.subarray((i % 3) * k * n), { m, n, k }), i * m * n);
  }
  using x = tensorFrom(device, a, { shape: [2, 3, m, k], dtype });
  using y = tensorFrom(device, b, { shape: [3, k, n], dtype });
  await checkProduct(device, [x, y], { shape: [2, 3, m, n], expected, dtype });

  const expectedWithSharedWeight = new Float64Array(6 * m * n);
  for (let i = 0; i < 6; i++) {
    expectedWithSharedWeight.set(matmulOracle(a.subarray(i * m * k, (i + 1) * m * k), b, { m, n, k }), i * m * n);
  }
  using weight = tensorFrom(device, b.subarray(0, k * n), { shape: [k, n], dtype });
  await checkProduct(device, [x, weight], { shape: [2, 3, m, n], expected: expectedWithSharedWeight, dtype });
}

async function checkProduct(
  device: Device,
  [a, b]: readonly [Tensor, Tensor],
  { shape, expected, dtype }: { shape: Shape; expected: Float64Array; dtype: DType },
): Promise<void> {
  using out = allocate(device, shape, { dtype });
  device.kernels.matmul(out, a, b, false);
  checkRounded(await out.read(), expected, {
    dtype,
    roundings: 8,
    scale: 4,
    description: `batched matmul with ${b.shape.join("×")}`,
  });
}

export interface MatmulSize {
  readonly m: number;
  readonly n: number;
  readonly k: number;
}

/** Computes a [M,K] · b [K,N] in float64. */
export function matmulOracle(a: Float64Array, b: Float64Array, { m, n, k }: MatmulSize): Float64Array {
  const out = new Float64Array(m * n);
  for (let i = 0; i < m; i++) {
    for (let l = 0; l < k; l++) {
      const factor = a[i * k + l]!;
      for (let j = 0; j < n; j++) out[i * n + j] = out[i * n + j]! + factor * b[l * n + j]!;
    }
  }
  return out;
}
