import {
  type Device,
  type Field,
  type KernelArguments,
  formatDevice,
  type KernelFeature,
  type KernelName,
  type Kernels,
  kernelFeatures,
  kernelSchema,
  type Operand,
  getOperands,
  type Shape,
  numel,
  type Tensor,
  getTensor,
  type Tile,
} from "@mosaic/core";
import { type Case, check, checkEqual, checkThrows } from "../check.ts";
import { normals } from "../oracle/numbers.ts";
import { type MakeDevice, withDevice, tensorFrom } from "./tensors.ts";

// Checks of the properties that the schema states for every kernel.

/**
 * Returns cases that check that each kernel reads and mutates the operands listed in the schema, and that attention
 * rejects features that the device does not support.
 */
export function schemaCases(make: MakeDevice): Case[] {
  const kernels = Object.keys(kernelSchema) as KernelName[];
  return [
    ...kernels.map((kernel) => ({
      name: `${kernel}: reads and mutates exactly the operands that the schema lists`,
      run: () => withDevice(make, (device) => checkAccess(device, kernel)),
    })),
    ...kernelFeatures.map((feature) => ({
      name: `attention with ${feature}: rejected unless the device supports it`,
      run: () => withDevice(make, (device) => checkFeatureRefused(device, feature)),
    })),
  ];
}

/** Creates a float32 tensor of these values, or of normally distributed values. */
type TensorFactory = (shape: Shape, values?: ArrayLike<number>) => Tensor;

function createTensorFactory(device: Device): TensorFactory {
  let seed = 0;
  return (shape, values = normals(numel(shape), ++seed)) => tensorFrom(device, values, { shape });
}

const [ROWS, WIDTH, NUM_KEYS] = [3, 4, 5];

/** Arguments for one call of each kernel. All values are finite, and every optional operand is present. */
const sampleArguments: { readonly [K in KernelName]: (x: TensorFactory) => KernelArguments<K> } = {
  attend: (x) => [createState(x), x([1, 2, ROWS, WIDTH]), createKvBlock(x), tile],
  attendBackward: (x) => {
    const grads = { dq: x([1, 2, ROWS, WIDTH]), dk: x([1, 1, NUM_KEYS, WIDTH]), dv: x([1, 1, NUM_KEYS, WIDTH]) };
    const savedTensors = { dOut: x([1, 2, ROWS, WIDTH]), lse: x([1, 2, ROWS]), delta: x([1, 2, ROWS]) };
    return [grads, x([1, 2, ROWS, WIDTH]), savedTensors, createKvBlock(x), tile];
  },
  merge: (x) => [createState(x), createState(x)],
  rowDot: (x) => [x([ROWS]), x([ROWS, WIDTH]), x([ROWS, WIDTH])],
  fill: (x) => [x([ROWS]), 7],
  copy: (x) => [x([ROWS]), x([ROWS])],
  binary: (x) => ["mul", x([ROWS]), x([ROWS]), x([ROWS])],
  scalar: (x) => ["add", x([ROWS]), x([ROWS]), 3],
  unary: (x) => ["square", x([ROWS]), x([ROWS])],
  gate: (x) => ["square", x([ROWS]), x([ROWS]), x([ROWS])],
  unaryBackward: (x) => ["gelu", x([ROWS]), x([ROWS]), x([ROWS])],
  reduce: (x) => ["sum", x([ROWS, 1]), x([ROWS, WIDTH])],
  matmul: (x) => [x([ROWS, NUM_KEYS]), x([ROWS, WIDTH]), x([WIDTH, NUM_KEYS]), false],
  linear: (x) => {
    const epilogue = {
      bias: x([NUM_KEYS]),
      activation: "square",
      gate: x([ROWS, NUM_KEYS]),
      preActivation: x([ROWS, NUM_KEYS]),
    } as const;
    return [x([ROWS, NUM_KEYS]), x([ROWS, WIDTH]), x([WIDTH, NUM_KEYS]), epilogue];
  },
  softmax: (x) => [x([ROWS, WIDTH]), x([ROWS, WIDTH])],
  softmaxBackward: (x) => [x([ROWS, WIDTH]), x([ROWS, WIDTH]), x([ROWS, WIDTH])],
  layerNorm: (x) => [
    x([ROWS, WIDTH]),
    x([ROWS, WIDTH]),
    createParameters(x),
    { mean: x([ROWS, 1]), rstd: x([ROWS, 1]) },
  ],
  layerNormBackward: (x) => {
    const stats = { mean: x([ROWS, 1]), rstd: x([ROWS, 1]) };
    return [createGradients(x), x([ROWS, WIDTH]), x([ROWS, WIDTH]), x([WIDTH]), stats];
  },
  rmsNorm: (x) => [x([ROWS, WIDTH]), x([ROWS, WIDTH]), createParameters(x), { mean: null, rstd: x([ROWS, 1]) }],
  rmsNormBackward: (x) => {
    const grads = { ...createGradients(x), dBias: null };
    return [grads, x([ROWS, WIDTH]), x([ROWS, WIDTH]), x([WIDTH]), { mean: null, rstd: x([ROWS, 1]) }];
  },
  rotary: (x) => {
    const angles = { cos: x([ROWS, WIDTH / 2]), sin: x([ROWS, WIDTH / 2]), interleaved: false, inverse: false };
    return [x([2, ROWS, WIDTH]), x([2, ROWS, WIDTH]), angles];
  },
  random: (x) => [x([ROWS, WIDTH]), { kind: "normal", mean: 0, std: 1, seed: 1, stream: 2 }],
  dropout: (x) => {
    const spec = { probability: 0.5, seed: 1, stream: 2, offset: 0, strides: [WIDTH, 1] };
    return [x([ROWS, WIDTH]), x([ROWS, WIDTH]), spec];
  },
  gatherRows: (x) => [x([ROWS, WIDTH]), x([NUM_KEYS, WIDTH]), x([ROWS], [4, 0, 4])],
  scatterAddRows: (x) => [x([NUM_KEYS, WIDTH]), x([NUM_KEYS, WIDTH]), x([NUM_KEYS], [4, 3, 2, 1, 0])],
  crossEntropy: (x) => {
    const rowStatistics = { loss: x([ROWS]), lse: x([ROWS]), counted: x([ROWS]) };
    return [rowStatistics, x([ROWS, WIDTH]), x([ROWS], [3, 0, 1]), { smoothing: 0.1, ignored: -1 }];
  },
  crossEntropyBackward: (x) => {
    const savedTensors = { x: x([ROWS, WIDTH]), target: x([ROWS], [3, 0, 1]), lse: x([ROWS]) };
    return [x([ROWS, WIDTH]), savedTensors, x([ROWS]), { smoothing: 0.1, ignored: -1 }];
  },
  adam: (x) => {
    const secondMoment = x([ROWS], [1, 2, 3]);
    const step = { rate: 0.1, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, decay: 0.1, correction1: 1, correction2: 1 };
    return [
      { parameter: x([ROWS]), first: x([ROWS]), second: secondMoment },
      x([ROWS]),
      { ...step, kind: "scheduleFree", mix: 0.5 },
    ];
  },
};

const tile: Tile = {
  q: [{ start: 2, length: ROWS, step: 1 }],
  k: [{ start: 0, length: NUM_KEYS, step: 1 }],
  mask: [{ q0: 0, q1: 9, k0: 0, k1: 9, type: "full" }],
  scale: 0.5,
};

const createState = (x: TensorFactory) => ({ out: x([1, 2, ROWS, WIDTH]), lse: x([1, 2, ROWS]) });
const createKvBlock = (x: TensorFactory) => ({ k: x([1, 1, NUM_KEYS, WIDTH]), v: x([1, 1, NUM_KEYS, WIDTH]) });
const createParameters = (x: TensorFactory) => ({ weight: x([WIDTH]), bias: x([WIDTH]), epsilon: 1e-5 });
const createGradients = (x: TensorFactory) => ({ dx: x([ROWS, WIDTH]), dWeight: x([WIDTH]), dBias: x([WIDTH]) });

/** Values of one operand before and after a call. `before` includes the offset that was added to mutated operands. */
interface OperandTrace {
  readonly operand: Operand;
  /** Increase of the version of the operand's storage by the call. */
  readonly versionIncrease: number;
  readonly before: Float32Array;
  readonly after: Float32Array;
}

async function checkAccess(device: Device, kernel: KernelName): Promise<void> {
  const parameters: readonly Field[] = kernelSchema[kernel];
  const flagIndex = parameters.findIndex((field) => "scalar" in field && field.scalar === "boolean");
  for (const isFlagSet of flagIndex < 0 ? [false] : [false, true]) {
    const call = async (valueOffset: number): Promise<OperandTrace[]> => {
      const args: unknown[] = [...sampleArguments[kernel](createTensorFactory(device))];
      if (flagIndex >= 0) args[flagIndex] = isFlagSet;
      return callKernel(device, kernel, { args, valueOffset });
    };
    const [first, second] = [await call(0), await call(0.5)];
    for (const [i, { operand, versionIncrease, before: valuesBefore, after: valuesAfter }] of first.entries()) {
      const description = `${kernel}: ${operand.name}`;
      check(
        versionIncrease > 0 === operand.isMutated,
        `${description}: expected a version counter increment ${operand.isMutated ? "> 0" : "of 0"}, received ${versionIncrease}; see \`versionedKernels\``,
      );
      if (!operand.isMutated) {
        checkEqual(valuesAfter, valuesBefore, description);
        continue;
      }
      check(
        !hasSameValues(valuesAfter, valuesBefore),
        `${description}: expected a modified operand, received an unmodified one`,
      );
      const isReadExpected = operand.isRead || (isFlagSet && operand.readFlagIndex === flagIndex);
      const isPriorValueUsed = !hasSameValues(valuesAfter, second[i]!.after);
      check(
        isPriorValueUsed === isReadExpected,
        `${description}: expected an operand that is ${isReadExpected ? "read and written" : "only written"}, received the opposite`,
      );
    }
  }
}

async function callKernel(
  device: Device,
  kernel: KernelName,
  { args, valueOffset }: { readonly args: readonly unknown[]; readonly valueOffset: number },
): Promise<OperandTrace[]> {
  const operandRecords: { operand: Operand; tensor: Tensor; before: Float32Array; version: number }[] = [];
  for (const operand of getOperands(kernel)) {
    const tensor = getTensor(operand, args);
    if (tensor === null) continue;
    if (operand.isMutated) device.kernels.scalar("add", tensor, tensor, valueOffset);
    operandRecords.push({ operand, tensor, before: await tensor.read(), version: tensor.storage.version });
  }
  (device.kernels[kernel] as (...kernelArgs: readonly unknown[]) => void)(...args);
  const pendingTraces = operandRecords.map(async ({ operand, tensor, before, version }) => {
    const versionIncrease = tensor.storage.version - version;
    return { operand, versionIncrease, before, after: await tensor.read() };
  });
  const result = await Promise.all(pendingTraces);
  for (const { tensor } of operandRecords) tensor[Symbol.dispose]();
  return result;
}

function hasSameValues(a: Float32Array, b: Float32Array): boolean {
  return a.every((value, i) => Object.is(value, b[i]));
}

async function checkFeatureRefused(device: Device, feature: KernelFeature): Promise<void> {
  const x = createTensorFactory(device);
  const [[{ out, lse }, q, kv], modifiers] = [sampleArguments.attend(x), modifierFactoriesByFeature[feature](x)];
  const v = feature === "valueHeadDim" ? x([1, 1, NUM_KEYS, WIDTH + 2]) : kv.v;
  const wideOut = feature === "valueHeadDim" ? x([1, 2, ROWS, WIDTH + 2]) : out;
  const call = { ...tile, ...(modifiers && { modifiers }) };
  const attend = () => device.kernels.attend({ out: wideOut, lse }, q, { k: kv.k, v }, call);
  if (device.features?.includes(feature)) return attend();
  const outBefore = await wideOut.read();
  const message = new RegExp(`${formatDevice(device)}.*${feature}.*omit it`);
  await checkThrows(attend, "OptionError", message);
  const [grads, , savedTensors] = sampleArguments.attendBackward(x);
  const attendBackward: Kernels["attendBackward"] = device.kernels.attendBackward;
  await checkThrows(() => attendBackward(grads, q, savedTensors, { k: kv.k, v }, call), "OptionError", message);
  checkEqual(await wideOut.read(), outBefore, "out after a rejected call");
}

/** Creates modifiers that use each feature. `valueHeadDim` is used through shapes instead. */
const modifierFactoriesByFeature: Readonly<Record<KernelFeature, (x: TensorFactory) => Tile["modifiers"]>> = {
  softcap: () => ({ softcap: 30 }),
  slopes: (x) => ({ slopes: x([2]) }),
  dropout: () => ({ dropout: { probability: 0.5, seed: 1, stream: 2, batchOffset: 0 } }),
  sampleMasks: () => ({ sampleMasks: [[]] }),
  valueHeadDim: () => undefined,
};
