import "./emulated.ts";
import { afterAll, beforeAll, test } from "vitest";
import { cuda } from "../src/index.ts";
import { checkTrial, trials } from "./trials.ts";

// On a real Hopper GPU, too: hopper.test.ts has its own kernels.
beforeAll(() => {
  process.env.MOSAIC_CUDA_FAMILY = "portable";
});
afterAll(() => {
  delete process.env.MOSAIC_CUDA_FAMILY;
});

test.each(trials)("attention on tensor cores: $name", async (trial) => {
  using device = cuda();
  await checkTrial(device, trial);
});
