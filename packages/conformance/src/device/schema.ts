import {
  type Device,
  type Field,
  type KernelArguments,
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

// What the schema states of all kernels alike.

/** Each kernel reads and mutates what its row in the schema states; attention rejects what the device does not have. */
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

/** Makes a float32 tensor of these values, or of some numbers. */
type TensorFactory = (shape: Shape, values?: ArrayLike<number>) => Tensor;

function createTensorFactory(device: Device): TensorFactory {
  let seed = 0;
  return (shape, values = normals(numel(shape), ++seed)) => tensorFrom(device, values, { shape });
}

const [rows, width, numKeys] = [3, 4, 5];

/** A call of each kernel whose arguments hold numbers; every optional operand is there. */
const sampleArguments: { readonly [K in KernelName]: (x: TensorFactory) => KernelArguments<K> } = {
  attend: (x) => [createState(x), x([1, 2, rows, width]), createKvBlock(x), tile],
  attendBackward: (x) => {
    const grads = { dq: x([1, 2, rows, width]), dk: x([1, 1, numKeys, width]), dv: x([1, 1, numKeys, width]) };
    const savedTensors = { dOut: x([1, 2, rows, width]), lse: x([1, 2, rows]), delta: x([1, 2, rows]) };
    return [grads, x([1, 2, rows, width]), savedTensors, createKvBlock(x), tile];
  },
  merge: (x) => [createState(x), createState(x)],
  rowDot: (x) => [x([rows]), x([rows, width]), x([rows, width])],
  fill: (x) => [x([rows]), 7],
  copy: (x) => [x([rows]), x([rows])],
  binary: (x) => ["mul", x([rows]), x([rows]), x([rows])],
  scalar: (x) => ["add", x([rows]), x([rows]), 3],
  unary: (x) => ["square", x([rows]), x([rows])],
  gate: (x) => ["square", x([rows]), x([rows]), x([rows])],
  unaryBackward: (x) => ["gelu", x([rows]), x([rows]), x([rows])],
  reduce: (x) => ["sum", x([rows, 1]), x([rows, width])],
  matmul: (x) => [x([rows, numKeys]), x([rows, width]), x([width, numKeys]), false],
  linear: (x) => {
    const epilogue = {
      bias: x([numKeys]),
      activation: "square",
      gate: x([rows, numKeys]),
      preActivation: x([rows, numKeys]),
    } as const;
    return [x([rows, numKeys]), x([rows, width]), x([width, numKeys]), epilogue];
  },
  softmax: (x) => [x([rows, width]), x([rows, width])],
  softmaxBackward: (x) => [x([rows, width]), x([rows, width]), x([rows, width])],
  layerNorm: (x) => [
    x([rows, width]),
    x([rows, width]),
    createParameters(x),
    { mean: x([rows, 1]), rstd: x([rows, 1]) },
  ],
  layerNormBackward: (x) => {
    const stats = { mean: x([rows, 1]), rstd: x([rows, 1]) };
    return [createGradients(x), x([rows, width]), x([rows, width]), x([width]), stats];
  },
  rmsNorm: (x) => [x([rows, width]), x([rows, width]), createParameters(x), { mean: null, rstd: x([rows, 1]) }],
  rmsNormBackward: (x) => {
    const grads = { ...createGradients(x), dBias: null };
    return [grads, x([rows, width]), x([rows, width]), x([width]), { mean: null, rstd: x([rows, 1]) }];
  },
  rotary: (x) => {
    const angles = { cos: x([rows, width / 2]), sin: x([rows, width / 2]), interleaved: false, inverse: false };
    return [x([2, rows, width]), x([2, rows, width]), angles];
  },
  random: (x) => [x([rows, width]), { kind: "normal", mean: 0, std: 1, seed: 1, stream: 2 }],
  dropout: (x) => {
    const spec = { probability: 0.5, seed: 1, stream: 2, offset: 0, strides: [width, 1] };
    return [x([rows, width]), x([rows, width]), spec];
  },
  gatherRows: (x) => [x([rows, width]), x([numKeys, width]), x([rows], [4, 0, 4])],
  scatterAddRows: (x) => [x([numKeys, width]), x([numKeys, width]), x([numKeys], [4, 3, 2, 1, 0])],
  crossEntropy: (x) => {
    const rowStatistics = { loss: x([rows]), lse: x([rows]), counted: x([rows]) };
    return [rowStatistics, x([rows, width]), x([rows], [3, 0, 1]), { smoothing: 0.1, ignored: -1 }];
  },
  crossEntropyBackward: (x) => {
    const savedTensors = { x: x([rows, width]), target: x([rows], [3, 0, 1]), lse: x([rows]) };
    return [x([rows, width]), savedTensors, x([rows]), { smoothing: 0.1, ignored: -1 }];
  },
  adam: (x) => {
    const secondMoment = x([rows], [1, 2, 3]);
    const step = { rate: 0.1, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, decay: 0.1, correction1: 1, correction2: 1 };
    return [
      { parameter: x([rows]), first: x([rows]), second: secondMoment },
      x([rows]),
      { ...step, kind: "scheduleFree", mix: 0.5 },
    ];
  },
};

const tile: Tile = {
  q: [{ start: 2, length: rows, step: 1 }],
  k: [{ start: 0, length: numKeys, step: 1 }],
  mask: [{ q0: 0, q1: 9, k0: 0, k1: 9, type: "full" }],
  scale: 0.5,
};

const createState = (x: TensorFactory) => ({ out: x([1, 2, rows, width]), lse: x([1, 2, rows]) });
const createKvBlock = (x: TensorFactory) => ({ k: x([1, 1, numKeys, width]), v: x([1, 1, numKeys, width]) });
const createParameters = (x: TensorFactory) => ({ weight: x([width]), bias: x([width]), epsilon: 1e-5 });
const createGradients = (x: TensorFactory) => ({ dx: x([rows, width]), dWeight: x([width]), dBias: x([width]) });

/** The values of each operand before and after a call whose mutated operands held what `before` makes of them. */
interface OperandTrace {
  readonly operand: Operand;
  /** By how much the call raised the version of the operand's memory. */
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
  const v = feature === "valueHeadSize" ? x([1, 1, numKeys, width + 2]) : kv.v;
  const wideOut = feature === "valueHeadSize" ? x([1, 2, rows, width + 2]) : out;
  const call = { ...tile, ...(modifiers && { modifiers }) };
  const attend = () => device.kernels.attend({ out: wideOut, lse }, q, { k: kv.k, v }, call);
  if (device.features?.includes(feature)) return attend();
  const outBefore = await wideOut.read();
  const message = new RegExp(`${device.type}:${device.index}.*${feature}.*omit it`);
  await checkThrows(attend, "OptionError", message);
  const [grads, , savedTensors] = sampleArguments.attendBackward(x);
  const attendBackward: Kernels["attendBackward"] = device.kernels.attendBackward;
  await checkThrows(() => attendBackward(grads, q, savedTensors, { k: kv.k, v }, call), "OptionError", message);
  checkEqual(await wideOut.read(), outBefore, "out after a rejected call");
}

/** What uses each feature; `valueHeadSize` is used through shapes. */
const modifierFactoriesByFeature: Readonly<Record<KernelFeature, (x: TensorFactory) => Tile["modifiers"]>> = {
  softcap: () => ({ softcap: 30 }),
  slopes: (x) => ({ slopes: x([2]) }),
  dropout: () => ({ dropout: { probability: 0.5, seed: 1, stream: 2, batchOffset: 0 } }),
  sampleMasks: () => ({ sampleMasks: [[]] }),
  valueHeadSize: () => undefined,
};
