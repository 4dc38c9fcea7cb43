import "./emulated.ts";
import { afterAll, beforeAll, test } from "vitest";
import { cuda } from "../src/index.ts";
import { checkTrial, trials } from "./trials.ts";

// Also on a real Hopper GPU, whose own kernels hopper.test.ts covers.
beforeAll(() => {
  process.env.MOSAIC_CUDA_FAMILY = "portable";
});
afterAll(() => {
  delete process.env.MOSAIC_CUDA_FAMILY;
});

test.each(trials)("attention on tensor cores matches the reference: $name", async (trial) => {
  using device = cuda();
  await checkTrial(device, trial);
});
