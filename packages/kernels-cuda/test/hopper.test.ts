import "./hopper.ts";
import { runLocalAttention } from "@mosaic/conformance";
import { expect, test } from "vitest";
import { cuda } from "../src/index.ts";
import { checkTrial, createTrial, trials } from "./trials.ts";

test.each(trials)("attention with TMA and wgmma matches the reference: $name", async (trial) => {
  using device = cuda();
  await checkTrial(device, trial);
});

test("MOSAIC_CUDA_FAMILY selects the portable kernels, and unknown families are rejected", async () => {
  try {
    process.env.MOSAIC_CUDA_FAMILY = "portable";
    using device = cuda();
    delete process.env.MOSAIC_CUDA_FAMILY;
    device.startTrace();
    await runLocalAttention(device, createTrial(64, "bfloat16"));
    const kernelNames = (await device.stopTrace()).map(({ name }) => name);
    expect(kernelNames).toContain("attend_bfloat16_64");
    process.env.MOSAIC_CUDA_FAMILY = "turing";
    expect(() => cuda()).toThrow("MOSAIC_CUDA_FAMILY: expected portable or hopper, received turing");
  } finally {
    delete process.env.MOSAIC_CUDA_FAMILY;
  }
});

// Without this test, a change of the selected kernel would go unnoticed.
test.each([
  { input: "heads of 64", headDim: 64, dtype: "bfloat16", forward: "attendHopper_bfloat16_64", gradients: "Hopper" },
  { input: "heads of 128", headDim: 128, dtype: "float16", forward: "attendHopper_float16_128", gradients: "Hopper" },
  { input: "heads of 40", headDim: 40, dtype: "float16", forward: "attendHopper_float16_64", gradients: "Hopper" },
  { input: "heads over 128", headDim: 192, dtype: "bfloat16", forward: "attendHopper_bfloat16_256", gradients: "" },
  {
    input: "rows that TMA does not support",
    headDim: 37,
    dtype: "bfloat16",
    forward: "attend_bfloat16_64",
    gradients: "",
  },
  { input: "float32", headDim: 64, dtype: "float32", forward: "attend_float32_64", gradients: "" },
] as const)("attention runs the kernels for $input", async ({ headDim, dtype, forward, gradients }) => {
  using device = cuda();
  device.startTrace();
  await runLocalAttention(device, createTrial(headDim, dtype));
  const kernelNames = (await device.stopTrace()).map(({ name }) => name).filter((name) => name.startsWith("attend"));
  const nameSuffix = gradients ? forward.replace("attendHopper_", "") : `${dtype}_${headDim <= 64 ? 64 : 256}`;
  expect(kernelNames).toEqual([
    forward,
    `attendKeys${gradients}_${nameSuffix}`,
    `attendQueries${gradients}_${nameSuffix}`,
  ]);
});
