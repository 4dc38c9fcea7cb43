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
let called: string[] = [];
let beginCalls: string[] = [];

const host = {
  native: Object.fromEntries(
    Object.keys(kernelSchema).map((name) => [name, () => void called.push(name)]),
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
  called = [];
  beginCalls = [];
  delete device.features;
});

let address = 0;

function tensor(shape: Shape, dtype: Tensor["dtype"] = "float32"): Tensor {
  const storage = new NativeStorage(owner, { address: (address += 64), id: 0, byteLength: 1 << 20 }, 1 << 20);
  const strides = shape.map((_, axis) => 10 + axis);
  return new Tensor({ device: device as unknown as Device, dtype, storage, shape, strides, offset: 2 });
}

/** Reads arguments back as native code does: by the schema alone. */
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
    const [at, dtype, rank] = [this.number(), this.number(), this.number()];
    const [shape, strides] = [this.numbers(rank), this.numbers(rank)];
    return { at, dtype, shape, strides };
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

function decoded(kernel: KernelName): unknown[] {
  return new Decoder().fields(kernelSchema[kernel]);
}

/** What a decoder makes of a tensor. */
function view({ storage, offset, dtype, shape, strides }: Tensor) {
  const at = (storage as NativeStorage).address + offset * (dtype === "float32" ? 4 : 2);
  return { at, dtype: ["float32", "bfloat16", "float16"].indexOf(dtype), shape: [...shape], strides: [...strides] };
}

const x = tensor([2, 3]);
const y = tensor([2, 3], "bfloat16");
const z = tensor([3], "float16");
const four = tensor([1, 2, 3, 4], "bfloat16");
const sum = tensor([1, 2, 3, 4]);
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

describe("arguments arrive as they were given", () => {
  const calls: { readonly [K in KernelName]?: readonly [args: Parameters<Kernels[K]>, wire: readonly unknown[]] } = {
    fill: [
      [x, -2.5],
      [view(x), -2.5],
    ],
    binary: [
      ["max", x, y, z],
      ["max", view(x), view(y), view(z)],
    ],
    unaryBackward: [
      ["gelu", x, y, z],
      ["gelu", view(x), view(y), view(z)],
    ],
    matmul: [
      [x, y, z, true],
      [view(x), view(y), view(z), 1],
    ],
    linear: [
      [x, y, z, { bias: z, activation: "relu", preActivation: null }],
      [view(x), view(y), view(z), [view(z), "relu", null]],
    ],
    attend: [
      [{ out: sum, lse: rows }, four, { k: four, v: four }, tile],
      [[view(sum), view(rows)], view(four), [view(four), view(four)], [...wire, null]],
    ],
    attendBackward: [
      [{ dq: sum, dk: sum, dv: sum }, four, { dOut: four, lse: rows, delta: rows }, { k: four, v: four }, tile],
      [
        [view(sum), view(sum), view(sum)],
        view(four),
        [view(four), view(rows), view(rows)],
        [view(four), view(four)],
        [...wire, null],
      ],
    ],
    layerNorm: [
      [x, y, { weight: z, bias: null, epsilon: 1e-5 }, { mean: null, rstd: x }],
      [view(x), view(y), [view(z), null, 1e-5], [null, view(x)]],
    ],
    rmsNormBackward: [
      [{ dx: y, dWeight: null, dBias: x }, y, y, null, { mean: x, rstd: x }],
      [[view(y), null, view(x)], view(y), view(y), null, [view(x), view(x)]],
    ],
    random: [
      [x, { kind: "normal", mean: 1, std: 2, seed: 2 ** 40, stream: 4 }],
      [view(x), ["normal", 1, 2, 2 ** 40, 4]],
    ],
    dropout: [
      [x, y, { probability: 0.5, seed: 1, stream: 2, offset: 3, strides: [3, 1] }],
      [view(x), view(y), [0.5, 1, 2, 3, [3, 1]]],
    ],
    crossEntropyBackward: [
      [y, { x: y, target: z, lse: x }, x, { smoothing: 0.1, ignored: -100 }],
      [view(y), [view(y), view(z), view(x)], view(x), [0.1, -100]],
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
      [[view(y), view(x), view(x)], view(y), ["scheduleFree", 1, 2, 3, 4, 5, 6, 7, 8]],
    ],
  };

  test.each(Object.entries(calls))("%s", (kernel, [args, expected]) => {
    (kernels[kernel as KernelName] as (...all: readonly unknown[]) => void)(...args);
    expect(called).toEqual([kernel]);
    expect(decoded(kernel as KernelName)).toEqual(expected);
  });

  test("random, of the other kind", () => {
    kernels.random(x, { kind: "uniform", low: -1, high: 1, seed: 1, stream: 0 });
    expect(decoded("random")[1]).toEqual(["uniform", -1, 1, 1, 0]);
  });

  test("attend, with all that a device may have", () => {
    device.features = ["softcap", "slopes", "dropout", "sampleMasks", "valueHeadSize"];
    const slopes = tensor([10]);
    const modifiers = {
      softcap: 30,
      slopes,
      dropout: { probability: 0.25, seed: 5, stream: 6, batchOffset: 7 },
      sampleMasks: [[], [{ q0: 9, q1: 10, k0: 0, k1: 1, type: "full" as const }]],
      origin: { batch: 1, head: 8 },
    };
    const v = tensor([1, 2, 3, 9], "bfloat16");
    kernels.attend({ out: sum, lse: rows }, four, { k: four, v }, { ...tile, modifiers });
    expect(decoded("attend").at(-1)).toEqual([
      ...wire,
      [30, view(slopes), [0.25, 5, 6, 7], [[], [[9, 10, 0, 1, 0]]], [1, 8]],
    ]);
    kernels.attend({ out: sum, lse: rows }, four, { k: four, v }, { ...tile, modifiers: {} });
    expect(decoded("attend").at(-1)).toEqual([...wire, [0, null, null, [], null]]);
  });

  test("more of them than the array has room for", () => {
    const q = Array.from({ length: 500 }, (_, i) => ({ start: i, length: 1, step: 1 }));
    const long = tensor([1, 2, 500, 4]);
    kernels.attend({ out: long, lse: tensor([1, 2, 500]) }, long, { k: long, v: long }, { ...tile, q, k: q });
    expect((decoded("attend")[3] as unknown[][])[0]).toHaveLength(500);
  });
});

describe("what native code would not survive is rejected before it", () => {
  const refused = (call: () => void, message: string): void => {
    expect(call).toThrow(message);
    expect(called).toEqual([]);
  };

  test("a dtype that the schema does not allow", () => {
    refused(
      () => kernels.attend({ out: four, lse: rows }, four, { k: four, v: four }, tile),
      "attend: state.out: expected float32, received bfloat16; pass a float32 tensor",
    );
    refused(() => kernels.rowDot(z, x, x), "rowDot: out: expected float32, received float16");
    refused(
      () => kernels.layerNormBackward({ dx: y, dWeight: z, dBias: null }, y, y, z, { mean: x, rstd: x }),
      "layerNormBackward: grads.dWeight: expected float32, received float16",
    );
  });

  test("an unknown value of an enumeration", () => {
    refused(() => kernels.binary("pow" as "add", x, x, x), "binary: op: expected one of add, sub, mul, div, max");
  });

  test("a feature that the device does not have", () => {
    const asked = { ...tile, modifiers: { softcap: 30 } };
    const kv = { k: four, v: four };
    const attend = () => kernels.attend({ out: sum, lse: rows }, four, kv, asked);
    refused(
      attend,
      "attention on fake:3: expected a call without softcap, which this device does not support, received softcap 30; " +
        'omit it, or use a device whose `features` include "softcap"',
    );
    device.features = ["softcap"];
    attend();
    expect(called).toEqual(["attend"]);
  });

  test("a tensor of another device, and one that was disposed", () => {
    const storage = new NativeStorage({ reclaim() {} }, { address: 64, id: 0, byteLength: 64 }, 64);
    const [shape, strides] = [[2], [1]];
    const other = { type: "other", index: 0 } as Device;
    const foreign = new Tensor({ device: other, dtype: "float32", storage, shape, strides, offset: 0 });
    refused(
      () => kernels.binary("add", x, x, foreign),
      "add: expected a tensor on this device, received a tensor on other:0",
    );
    const gone = tensor([2]);
    gone[Symbol.dispose]();
    refused(() => kernels.unaryBackward("gelu", x, x, gone), "gelu: expected a tensor that is not disposed");
    expect(beginCalls).toEqual(["add", "gelu"]);
  });

  test("more axes than native code has room for", () => {
    const deep = tensor(new Array<number>(13).fill(1));
    refused(() => kernels.copy(deep, deep), "copy: expected at most 12 axes, received 13");
    const spec = { probability: 0, seed: 0, stream: 0, offset: 0, strides: new Array<number>(13).fill(1) };
    refused(() => kernels.dropout(x, x, spec), "dropout: expected at most 12 axes, received 13");
  });
});
