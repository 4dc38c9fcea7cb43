import { beforeEach, describe, expect, test } from "vitest";
import { checkpoint } from "../../src/autograd/checkpoint.ts";
import { defineOp } from "../../src/autograd/define-op.ts";
import { preserveVersion } from "../../src/autograd/saved-tensors.ts";
import { singleRankGroup } from "../../src/collectives/single-rank-group.ts";
import { fromArray, ones } from "../../src/creation.ts";
import { randn } from "../../src/random.ts";
import { AutogradError } from "../../src/errors.ts";
import { init } from "../../src/init.ts";
import { compileKernel, getOperands } from "../../src/kernels/operands.ts";
import type { KernelName } from "../../src/kernels/kernels.ts";
import { kernelSchema } from "../../src/kernels/schema.ts";
import { Linear } from "../../src/modules/linear.ts";
import { linear } from "../../src/ops/linear.ts";
import type { Tensor } from "../../src/tensor.ts";
import { createLeaf, ReferenceDevice } from "../reference/index.ts";

let device: ReferenceDevice;
beforeEach(() => {
  device = new ReferenceDevice();
});

describe("backward after a saved tensor was mutated", () => {
  test("throws an error that names the operation, the tensor and the mutating kernel", () => {
    const [x, y] = [createLeaf(device, [1, 2]), createLeaf(device, [3, 4])];
    using product = x.mul(y);
    device.kernels.fill(y, 0);
    expect(() => product.backward(ones(device, [2]))).toThrow(
      new AutogradError({
        where: "backward of mul",
        expected: '"b" [2] float32 at version 1, as saved in the forward',
        received: 'version 2, mutated by "fill"',
        remedy: "mutate a tensor after the backward (parameters after loss.backward()), or mutate a copy",
      }),
    );
  });

  test("throws for a host write through a view, and for a mutated output", () => {
    const x = createLeaf(device, [1, 2]);
    using squaredInput = x.square();
    {
      using view = x.detach();
      using viewPart = view.slice(0, 0, 1);
      device.write(viewPart, [7]);
    }
    expect(() => squaredInput.backward(ones(device, [2]))).toThrow(/backward of square: .*"x".*mutated by "write"/);
    const z = createLeaf(device, [1, 2]);
    using y = z.softmax();
    device.kernels.scalar("mul", y, y, 2);
    expect(() => y.backward(ones(device, [2]))).toThrow(/backward of softmax: .*"output".*mutated by "scalar"/);
  });

  test("throws for a mutated operand that requires no gradient", () => {
    const x = createLeaf(device, [1]);
    using factor = ones(device, [1]);
    using y = x.mul(factor).tanh();
    device.kernels.fill(factor, 2);
    expect(() => y.backward()).toThrow(/backward of mul: expected "b" \[1\]/);
  });

  test("throws for a mutated input of a checkpoint", () => {
    const x = createLeaf(device, [1, 2]);
    using y = checkpoint((each) => each.square().sum(), x);
    device.kernels.fill(x, 3);
    expect(() => y.backward()).toThrow(/backward of checkpoint: expected "input 0" \[2\].*mutated by "fill"/);
  });

  test("throws for a mutated tensor that a custom operation saved, but not for other tensors", () => {
    const scaleByTableOp = defineOp({
      name: "scaled",
      forward([x]: [Tensor], scratch: Tensor) {
        const output = x.device.empty(x.shape, x.dtype);
        const table = x.device.empty(x.shape, x.dtype);
        x.device.kernels.copy(table, scratch);
        x.device.kernels.binary("mul", output, x, table);
        tables.push(table);
        return { output, saved: { table, note: "no tensor" } };
      },
      backward: ({ table }, dOut) => [dOut.mul(table)],
    });
    const tables: Tensor[] = [];
    const x = createLeaf(device, [1, 2]);
    using scratch = ones(device, [2]);
    using y = scaleByTableOp([x], scratch);
    device.kernels.fill(scratch, 5); // not saved, so no error
    using secondOutput = scaleByTableOp([x], scratch);
    device.kernels.fill(tables[1]!, 5);
    expect(() => secondOutput.backward(ones(device, [2]))).toThrow(/backward of scaled: expected "table"/);
    y.backward(ones(device, [2]));
    expect(x.grad).not.toBeNull();
  });

  test("throws for a tensor that a collective mutated", async () => {
    await using ctx = await init({ device, collectives: singleRankGroup(), rank: 0, worldSize: 1 });
    const x = createLeaf(device, [1, 2]);
    using y = x.square();
    ctx.world.allReduce(x).wait();
    expect(() => y.backward(ones(ctx, [2]))).toThrow(/backward of square: expected "x".*mutated by "allReduce"/);
    const [sentTensor, receivedTensor] = [ones(ctx, [2]), ones(ctx, [2])];
    const transfers = [
      { tensor: sentTensor, to: 0 },
      { tensor: receivedTensor, from: 0 },
    ];
    const versionsBefore = [sentTensor, receivedTensor].map(({ storage }) => storage.version);
    ctx.world.sendRecv(transfers).wait();
    expect(sentTensor.storage.version).toBe(versionsBefore[0]);
    expect(receivedTensor.storage.version).toBeGreaterThan(versionsBefore[1]!);
  });

  test("throws for a parameter that an optimizer step updated, as in PyTorch", async () => {
    await using ctx = await init({ device, rank: 0, worldSize: 1 });
    using layer = new Linear(ctx, 2, 1);
    using x = randn(ctx, [3, 2]);
    x.requiresGrad = true;
    using y = layer.forward(x).sum();
    const [firstState, secondState] = [ones(device, [1, 2]), ones(device, [1, 2])];
    using gradient = ones(device, [1, 2]);
    const rates = {
      rate: 0.1,
      beta1: 0.9,
      beta2: 0.99,
      epsilon: 1e-8,
      decay: 0,
      correction1: 1,
      correction2: 1,
      mix: 0,
    };
    device.kernels.adam({ parameter: layer.weight, first: firstState, second: secondState }, gradient, {
      kind: "adamW",
      ...rates,
    });
    expect(() => y.backward()).toThrow(/backward of linear: expected "weight" \[1,2\] float32.*mutated by "adam"/);
  });
});

describe("backward after a permitted mutation", () => {
  test("succeeds if the tensor is not saved, or is mutated before the forward or after the backward", async () => {
    const x = createLeaf(device, [1, 2]);
    device.kernels.fill(x, 2);
    using sum = x.add(x);
    device.kernels.fill(x, 3); // add saves nothing
    sum.backward(ones(device, [2]));
    using y = x.square();
    y.backward(ones(device, [2]));
    device.kernels.fill(x, 4);
    expect([...(await x.grad!.read())]).toEqual([8, 8]);
  });

  test("succeeds if gradients accumulate over forwards and parameters are updated between steps", async () => {
    const weight = createLeaf(device, [1, 1]);
    for (let step = 0; step < 3; step++) {
      for (let microBatch = 0; microBatch < 2; microBatch++) {
        using loss = weight.square().sum();
        loss.backward();
      }
      device.kernels.binary("add", weight, weight, weight.grad!);
      device.kernels.fill(weight.grad!, 0);
    }
    expect([...(await weight.read())]).toEqual([125, 125]);
  });

  test("succeeds if a sharded parameter is released after the forward and gathered for the backward", async () => {
    using weight = fromArray(device, [1, 2, 3, 4], [2, 2]);
    weight.requiresGrad = true;
    using x = fromArray(device, [1, 1], [1, 2]);
    x.requiresGrad = true;
    using y = linear(x, weight).sum();
    preserveVersion([weight, x], () => device.kernels.fill(weight, Number.NaN));
    preserveVersion([weight], () => device.write(weight, [1, 2, 3, 4]));
    y.backward();
    expect([...(await x.grad!.read())]).toEqual([4, 6]);
    const { version } = weight.storage;
    expect(() =>
      preserveVersion([weight], () => {
        device.kernels.fill(weight, 0);
        throw new Error("inside");
      }),
    ).toThrow("inside");
    expect(weight.storage.version).toBe(version);
  });
});

describe("kernel calls", () => {
  const kernels = Object.keys(kernelSchema) as KernelName[];

  test.each(kernels)("%s raises the version only of operands that the schema declares as mutated", (kernel) => {
    const parameters: Record<string, Tensor>[] = kernelSchema[kernel].map(() => ({}));
    const args: unknown[] = parameters;
    const operands = getOperands(kernel).map((operand) => {
      const tensor = device.empty([1], "float32");
      if (operand.field === undefined) args[operand.parameter] = tensor;
      else parameters[operand.parameter]![operand.field] = tensor;
      return { ...operand, tensor };
    });
    const method = compileKernel(kernel, "", [])({}) as (...kernelArgs: readonly unknown[]) => void;
    method(...args);
    for (const { tensor, isMutated } of operands) {
      expect([tensor.storage.version, tensor.storage.mutation]).toEqual(isMutated ? [1, kernel] : [0, ""]);
    }
  });
});
