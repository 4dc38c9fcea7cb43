import "./emulated.ts";
import { expect, test } from "vitest";
import { cuda } from "../src/index.ts";

test("the gradient of cross-entropy subtracts 1 from one class only, if float32 cannot represent all classes", async () => {
  using device = cuda();
  const target = 2 ** 24;
  const count = target + 2; // float32 rounds the class after the target to the target
  const scalar = (value: number) => {
    const x = device.empty([1], "float32");
    device.write(x, [value]);
    return x;
  };
  using logit = scalar(0);
  using x = logit.view({ shape: [1, count], strides: [0, 0], offset: 0 });
  using targets = scalar(target);
  using lse = scalar(Math.log(count));
  using dLoss = scalar(1);
  using dx = device.empty([1, count], "bfloat16");
  device.kernels.crossEntropyBackward(dx, { x, target: targets, lse }, dLoss, { smoothing: 0, ignored: -100 });
  using lastGradients = dx.slice(1, target - 1, count);
  const values = await lastGradients.read();
  expect(Array.from(values, (value) => Math.round(value))).toEqual([0, -1, 0].map((value) => expect.closeTo(value)));
}, 120_000);
