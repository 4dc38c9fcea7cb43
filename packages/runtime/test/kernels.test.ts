import {
  type Device,
  type Field,
  type KernelFeature,
  type KernelName,
  type Kernels,
  kernelEnumerations,
  kernelSchema,
  kernelStructures,
  type Shape,
  Tensor,
} from "@mosaic/core";
import { beforeEach, describe, expect, test } from "vitest";
import { nativeKernels, NativeStorage, ArgumentBuffer } from "../src/index.ts";

const owner = { reclaim() {} };
const argumentBuffer = new ArgumentBuffer({ bind: () => {} });
let calledKernels: string[] = [];
let beginCalls: string[] = [];

const host = {
  native: Object.fromEntries(
    Object.keys(kernelSchema).map((name) => [name, () => void calledKernels.push(name)]),
  ) as unknown as Readonly<Record<KernelName, () => void>>,
  begin(where: string): ArgumentBuffer {
    beginCalls.push(where);
    return argumentBuffer.begin(owner, 4096, where);
  },
  launch: (call: () => void) => call(),
};

const device: { type: string; index: number; features?: readonly KernelFeature[] } = { type: "fake", index: 3 };
const kernels = nativeKernels(device, host);

beforeEach(() => {
  calledKernels = [];
  beginCalls = [];
  delete device.features;
});

let address = 0;

function tensor(shape: Shape, dtype: Tensor["dtype"] = "float32"): Tensor {
  const storage = new NativeStorage(owner, { address: (address += 64), id: 0, byteLength: 1 << 20 }, 1 << 20);
  const strides = shape.map((_, axis) => 10 + axis);
  return new Tensor({ device: device as unknown as Device, dtype, storage, shape, strides, offset: 2 });
}

/** Reads arguments back as native code does, based on the schema only. */
class Decoder {
  #next = 1;

  number(): number {
    return argumentBuffer.values[this.#next++]!;
  }

  fields(fields: readonly Field[]): unknown[] {
    return fields.map((field) => this.field(field));
  }

  field(field: Field): unknown {
    if ("tensor" in field) return field.optional && this.number() === 0 ? null : this.view();
    if ("scalar" in field) return this.number();
    if ("enum" in field) {
      return field.optional && this.number() === 0 ? null : kernelEnumerations[field.enum][this.number()];
    }
    if ("list" in field) return this.list(field.list);
    return field.optional && this.number() === 0 ? null : this.fields(kernelStructures[field.struct]);
  }

  view(): unknown {
    const [tensorAddress, dtype, rank] = [this.number(), this.number(), this.number()];
    const [shape, strides] = [this.numbers(rank), this.numbers(rank)];
    return { at: tensorAddress, dtype, shape, strides };
  }

  list(kind: string): unknown {
    const count = this.number();
    if (kind === "strides") return this.numbers(count);
    if (kind === "slicesBySample") return Array.from({ length: count }, () => this.list("slices"));
    return Array.from({ length: count }, () => this.numbers(kind === "spans" ? 3 : 5));
  }

  numbers(count: number): number[] {
    return Array.from({ length: count }, () => this.number());
  }
}

function decodeArguments(kernel: KernelName): unknown[] {
  return new Decoder().fields(kernelSchema[kernel]);
}

/** Returns the value that the decoder reads for a tensor. */
function encodeView({ storage, offset, dtype, shape, strides }: Tensor) {
  const tensorAddress = (storage as NativeStorage).address + offset * (dtype === "float32" ? 4 : 2);
  return {
    at: tensorAddress,
    dtype: ["float32", "bfloat16", "float16"].indexOf(dtype),
    shape: [...shape],
    strides: [...strides],
  };
}

const x = tensor([2, 3]);
const y = tensor([2, 3], "bfloat16");
const z = tensor([3], "float16");
const bfloat16Tensor = tensor([1, 2, 3, 4], "bfloat16");
const float32Tensor = tensor([1, 2, 3, 4]);
const rows = tensor([1, 2, 3]);
const tile = {
  q: [{ start: 1, length: 3, step: 3 }],
  k: [
    { start: 5, length: 1, step: 1 },
    { start: 7, length: 2, step: 2 },
  ],
  mask: [{ q0: 1, q1: 2, k0: 3, k1: 4, type: "causal" }],
  scale: 0.5,
} as const;
const wire = [
  [[1, 3, 3]],
  [
    [5, 1, 1],
    [7, 2, 2],
  ],
  [[1, 2, 3, 4, 1]],
  0.5,
];

describe("native code receives the arguments of a kernel unchanged", () => {
  const calls: { readonly [K in KernelName]?: readonly [args: Parameters<Kernels[K]>, wire: readonly unknown[]] } = {
    fill: [
      [x, -2.5],
      [encodeView(x), -2.5],
    ],
    binary: [
      ["max", x, y, z],
      ["max", encodeView(x), encodeView(y), encodeView(z)],
    ],
    unaryBackward: [
      ["gelu", x, y, z],
      ["gelu", encodeView(x), encodeView(y), encodeView(z)],
    ],
    matmul: [
      [x, y, z, true],
      [encodeView(x), encodeView(y), encodeView(z), 1],
    ],
    linear: [
      [x, y, z, { bias: z, activation: "relu", gate: null, preActivation: x }],
      [encodeView(x), encodeView(y), encodeView(z), [encodeView(z), "relu", null, encodeView(x)]],
    ],
    attend: [
      [{ out: float32Tensor, lse: rows }, bfloat16Tensor, { k: bfloat16Tensor, v: bfloat16Tensor }, tile],
      [
        [encodeView(float32Tensor), encodeView(rows)],
        encodeView(bfloat16Tensor),
        [encodeView(bfloat16Tensor), encodeView(bfloat16Tensor)],
        [...wire, null],
      ],
    ],
    attendBackward: [
      [
        { dq: float32Tensor, dk: float32Tensor, dv: float32Tensor },
        bfloat16Tensor,
        { dOut: bfloat16Tensor, lse: rows, delta: rows },
        { k: bfloat16Tensor, v: bfloat16Tensor },
        tile,
      ],
      [
        [encodeView(float32Tensor), encodeView(float32Tensor), encodeView(float32Tensor)],
        encodeView(bfloat16Tensor),
        [encodeView(bfloat16Tensor), encodeView(rows), encodeView(rows)],
        [encodeView(bfloat16Tensor), encodeView(bfloat16Tensor)],
        [...wire, null],
      ],
    ],
    layerNorm: [
      [x, y, { weight: z, bias: null, epsilon: 1e-5 }, { mean: null, rstd: x }],
      [encodeView(x), encodeView(y), [encodeView(z), null, 1e-5], [null, encodeView(x)]],
    ],
    rmsNormBackward: [
      [{ dx: y, dWeight: null, dBias: x }, y, y, null, { mean: x, rstd: x }],
      [[encodeView(y), null, encodeView(x)], encodeView(y), encodeView(y), null, [encodeView(x), encodeView(x)]],
    ],
    random: [
      [x, { kind: "normal", mean: 1, std: 2, seed: 2 ** 40, stream: 4 }],
      [encodeView(x), ["normal", 1, 2, 2 ** 40, 4]],
    ],
    dropout: [
      [x, y, { probability: 0.5, seed: 1, stream: 2, offset: 3, strides: [3, 1] }],
      [encodeView(x), encodeView(y), [0.5, 1, 2, 3, [3, 1]]],
    ],
    crossEntropyBackward: [
      [y, { x: y, target: z, lse: x }, x, { smoothing: 0.1, ignored: -100 }],
      [encodeView(y), [encodeView(y), encodeView(z), encodeView(x)], encodeView(x), [0.1, -100]],
    ],
    adam: [
      [
        { parameter: y, first: x, second: x },
        y,
        {
          kind: "scheduleFree",
          rate: 1,
          beta1: 2,
          beta2: 3,
          epsilon: 4,
          decay: 5,
          correction1: 6,
          correction2: 7,
          mix: 8,
        },
      ],
      [[encodeView(y), encodeView(x), encodeView(x)], encodeView(y), ["scheduleFree", 1, 2, 3, 4, 5, 6, 7, 8]],
    ],
  };

  test.each(Object.entries(calls))("%s", (kernel, [args, expected]) => {
    (kernels[kernel as KernelName] as (...all: readonly unknown[]) => void)(...args);
    expect(calledKernels).toEqual([kernel]);
    expect(decodeArguments(kernel as KernelName)).toEqual(expected);
  });

  test("random with a uniform distribution", () => {
    kernels.random(x, { kind: "uniform", low: -1, high: 1, seed: 1, stream: 0 });
    expect(decodeArguments("random")[1]).toEqual(["uniform", -1, 1, 1, 0]);
  });

  test("attend with all optional features", () => {
    device.features = ["softcap", "slopes", "dropout", "sampleMasks", "valueHeadDim"];
    const slopes = tensor([10]);
    const modifiers = {
      softcap: 30,
      slopes,
      dropout: { probability: 0.25, seed: 5, stream: 6, batchOffset: 7 },
      sampleMasks: [[], [{ q0: 9, q1: 10, k0: 0, k1: 1, type: "full" as const }]],
      origin: { batch: 1, head: 8 },
    };
    const v = tensor([1, 2, 3, 9], "bfloat16");
    kernels.attend({ out: float32Tensor, lse: rows }, bfloat16Tensor, { k: bfloat16Tensor, v }, { ...tile, modifiers });
    expect(decodeArguments("attend").at(-1)).toEqual([
      ...wire,
      [30, encodeView(slopes), [0.25, 5, 6, 7], [[], [[9, 10, 0, 1, 0]]], [1, 8]],
    ]);
    kernels.attend(
      { out: float32Tensor, lse: rows },
      bfloat16Tensor,
      { k: bfloat16Tensor, v },
      { ...tile, modifiers: {} },
    );
    expect(decodeArguments("attend").at(-1)).toEqual([...wire, [0, null, null, [], null]]);
  });

  test("attend with more spans than the argument array has room for", () => {
    const q = Array.from({ length: 500 }, (_, i) => ({ start: i, length: 1, step: 1 }));
    const longTensor = tensor([1, 2, 500, 4]);
    kernels.attend(
      { out: longTensor, lse: tensor([1, 2, 500]) },
      longTensor,
      { k: longTensor, v: longTensor },
      { ...tile, q, k: q },
    );
    expect((decodeArguments("attend")[3] as unknown[][])[0]).toHaveLength(500);
  });
});

describe("invalid arguments are rejected before native code is called", () => {
  const expectRefused = (call: () => void, message: string): void => {
    expect(call).toThrow(message);
    expect(calledKernels).toEqual([]);
  };

  test("a dtype that the schema does not allow", () => {
    expectRefused(
      () =>
        kernels.attend(
          { out: bfloat16Tensor, lse: rows },
          bfloat16Tensor,
          { k: bfloat16Tensor, v: bfloat16Tensor },
          tile,
        ),
      "attend: state.out: expected float32, received bfloat16; pass a float32 tensor",
    );
    expectRefused(() => kernels.rowDot(z, x, x), "rowDot: out: expected float32, received float16");
    expectRefused(
      () => kernels.layerNormBackward({ dx: y, dWeight: z, dBias: null }, y, y, z, { mean: x, rstd: x }),
      "layerNormBackward: grads.dWeight: expected float32, received float16",
    );
  });

  test("an unknown value of an enumeration", () => {
    expectRefused(() => kernels.binary("pow" as "add", x, x, x), "binary: op: expected one of add, sub, mul, div, max");
  });

  test("a feature that the device does not have", () => {
    const unsupportedTile = { ...tile, modifiers: { softcap: 30 } };
    const kv = { k: bfloat16Tensor, v: bfloat16Tensor };
    const callAttend = () => kernels.attend({ out: float32Tensor, lse: rows }, bfloat16Tensor, kv, unsupportedTile);
    expectRefused(
      callAttend,
      "attention on fake:3: expected a call without softcap, which this device does not support, received softcap 30; " +
        'omit it, or use a device whose `features` include "softcap"',
    );
    device.features = ["softcap"];
    callAttend();
    expect(calledKernels).toEqual(["attend"]);
  });

  test("a tensor of another device, and a disposed tensor", () => {
    const storage = new NativeStorage({ reclaim() {} }, { address: 64, id: 0, byteLength: 64 }, 64);
    const [shape, strides] = [[2], [1]];
    const otherDevice = { type: "other", index: 0 } as Device;
    const foreignTensor = new Tensor({ device: otherDevice, dtype: "float32", storage, shape, strides, offset: 0 });
    expectRefused(
      () => kernels.binary("add", x, x, foreignTensor),
      "add: expected a tensor on this device, received a tensor on other:0",
    );
    const disposedTensor = tensor([2]);
    disposedTensor[Symbol.dispose]();
    expectRefused(
      () => kernels.unaryBackward("gelu", x, x, disposedTensor),
      "gelu: expected a tensor that is not disposed",
    );
    expect(beginCalls).toEqual(["add", "gelu"]);
  });

  test("more axes than native code supports", () => {
    const rank13Tensor = tensor(new Array<number>(13).fill(1));
    expectRefused(() => kernels.copy(rank13Tensor, rank13Tensor), "copy: expected at most 12 axes, received 13");
    const spec = { probability: 0, seed: 0, stream: 0, offset: 0, strides: new Array<number>(13).fill(1) };
    expectRefused(() => kernels.dropout(x, x, spec), "dropout: expected at most 12 axes, received 13");
  });
});
