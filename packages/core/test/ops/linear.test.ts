import { expect, test } from "vitest";
import { ones } from "../../src/creation.ts";
import type { UnaryOp } from "../../src/kernels/kernels.ts";
import { linear } from "../../src/ops/linear.ts";
import { ReferenceDevice } from "../reference/index.ts";

// Memory of the backward of linear. Its gradients are checked in gradients.test.ts.

const ROWS = 60;
const FEATURES = 50;
const HIDDEN_BYTES = ROWS * FEATURES * 4;

test("the backward of an activation overwrites the sums that were saved, and allocates no tensor of their size", () => {
  for (const activation of ["gelu", "geluTanh", "silu", "tanh", "sigmoid", "square"] satisfies UnaryOp[]) {
    using device = new ReferenceDevice();
    using x = ones(device, [ROWS, 1]);
    using weight = ones(device, [FEATURES, 1]);
    x.requiresGrad = weight.requiresGrad = true;
    using y = linear(x, weight, null, activation);
    using dOut = ones(device, [ROWS, FEATURES]);
    device.resetPeakMemory();
    const allocatedBefore = device.memory().allocated;
    y.backward(dOut);
    expect(device.memory().peak - allocatedBefore, activation).toBeLessThan(HIDDEN_BYTES);
    x.grad = weight.grad = null;
  }
});

test("the backward of an activation changes neither the output nor its gradient", async () => {
  for (const activation of ["relu", "gelu"] satisfies UnaryOp[]) {
    using device = new ReferenceDevice();
    using x = ones(device, [2, 3]);
    using weight = ones(device, [2, 3]);
    x.requiresGrad = weight.requiresGrad = true;
    using y = linear(x, weight, null, activation);
    const output = await y.read();
    using dOut = ones(device, [2, 2]);
    y.backward(dOut);
    expect(await y.read()).toEqual(output);
    expect([...(await dOut.read())]).toEqual([1, 1, 1, 1]);
    x.grad = weight.grad = null;
  }
});
