import { expect, test } from "vitest";
import { fromArray } from "../src/creation.ts";
import * as core from "../src/index.ts";
import { Tensor } from "../src/tensor.ts";
import { ReferenceDevice } from "./reference/index.ts";

const device = new ReferenceDevice();
const createTensor = (): Tensor => fromArray(device, [0.5, 1, 2, 4], [2, 2]);

/** Arguments after the tensor, for both the method and the function. */
const calls = {
  add: [createTensor()],
  sub: [createTensor()],
  mul: [createTensor()],
  div: [createTensor()],
  scale: [3],
  matmul: [createTensor()],
  linear: [createTensor(), fromArray(device, [1, 2], [2]), "silu", createTensor()],
  gated: [createTensor(), "silu"],
  neg: [],
  exp: [],
  log: [],
  sqrt: [],
  rsqrt: [],
  tanh: [],
  sigmoid: [],
  relu: [],
  gelu: [{ approximate: "tanh" }],
  silu: [],
  square: [],
  softmax: [0],
  layerNorm: [null, null, { epsilon: 0.5 }],
  rmsNorm: [fromArray(device, [1, 2], [2]), { epsilon: 0.5, weightOffset: 1 }],
  sum: [0, { keepDims: true }],
  mean: [1],
  max: [],
  min: [0],
} satisfies Partial<Record<keyof core.TensorMethods, readonly unknown[]>>;

test.each(Object.keys(calls) as (keyof typeof calls)[])("x.%s(…) equals the function of that name", async (name) => {
  const x = createTensor();
  const operation = core[name] as (x: Tensor, ...rest: readonly unknown[]) => Tensor;
  const method = x[name] as (...rest: readonly unknown[]) => Tensor;
  const [a, b] = [method.apply(x, calls[name]), operation(x, ...calls[name])];
  expect(a.shape).toEqual(b.shape);
  expect([...(await a.read())]).toEqual([...(await b.read())]);
});

test("Tensor has view methods, and no methods other than those listed here", async () => {
  const x = createTensor();
  const viewNames = [
    "reshape",
    "permute",
    "transpose",
    "slice",
    "select",
    "split",
    "squeeze",
    "unsqueeze",
    "expand",
    "contiguous",
    "to",
  ];
  expect([...(await x.transpose(0, 1).reshape([4]).slice(0, 1, 4, 2).read())]).toEqual([2, 4]);
  expect(x.permute([1, 0]).contiguous().to("bfloat16").dtype).toBe("bfloat16");
  expect(x.slice(0, 0, 1).expand([3, 2]).shape).toEqual([3, 2]);
  const ownMethods = [
    "detach",
    "setData",
    "view",
    "read",
    "item",
    "backward",
    "record",
    "gradientEdge",
    "assertNotDisposed",
    "dispose",
    "toString",
    "toJSON",
  ];
  const methods = Object.getOwnPropertyNames(Tensor.prototype).filter((name) => {
    return typeof Object.getOwnPropertyDescriptor(Tensor.prototype, name)!.value === "function";
  });
  expect(methods.toSorted()).toEqual([...viewNames, ...ownMethods, ...Object.keys(calls), "constructor"].toSorted());
});

test("arithmetic methods accept a number as the operand", async () => {
  const x = createTensor();
  for (const [result, expected] of [
    [x.add(2), [2.5, 3, 4, 6]],
    [x.sub(2), [-1.5, -1, 0, 2]],
    [x.mul(2), [1, 2, 4, 8]],
    [x.div(2), [0.25, 0.5, 1, 2]],
  ] as const)
    expect([...(await result.read())]).toEqual(expected);
  expect(() => core.add(2 as never, 2)).toThrow(core.OptionError);
});

test("view rejects a shape array and recommends reshape", () => {
  expect(() => createTensor().view([6, 8] as never)).toThrow(
    /^view: expected \{ shape, strides, offset \}, received \[6,8\]; use reshape\(\[6,8\]\)$/,
  );
});

test("chained methods are differentiable", async () => {
  const x = createTensor();
  x.requiresGrad = true;
  const loss = x.square().scale(0.5).sum();
  loss.backward();
  expect([...(await x.grad!.read())]).toEqual([0.5, 1, 2, 4]);
});
