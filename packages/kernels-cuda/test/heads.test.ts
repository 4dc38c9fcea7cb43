import "./emulated.ts";
import { answerOf, attendLocally, type AttentionNumbers, checkClose, magnitude, type Trial } from "@mosaic/conformance";
import { contiguous, masks } from "@mosaic/core";
import { afterEach, test } from "vitest";
import { cuda } from "../src/index.ts";
import { checkTrial, trialOf } from "./trials.ts";

// A grid reaches 65 535 blocks along y and along z: heads and batches may be more.

afterEach(() => {
  delete process.env.MOSAIC_EMULATED_GRID;
  delete process.env.MOSAIC_EMULATED_CAPABILITY;
});

/** Heads and batches that a grid of 4 × 4 holds neither one by one nor without blocks to spare. */
const many = { batch: 3, numHeads: 5, numKvHeads: 5 };

test.each([
  { gpu: "Ampere", capability: "80", dtype: "float32" },
  { gpu: "Ampere", capability: "80", dtype: "bfloat16" },
  { gpu: "Hopper", capability: "90", dtype: "float16" },
] as const)("more heads than a grid is wide or deep: $dtype on $gpu", async ({ capability, dtype }) => {
  process.env.MOSAIC_EMULATED_CAPABILITY = capability;
  process.env.MOSAIC_EMULATED_GRID = "4";
  using device = cuda();
  const trial = trialOf(64, dtype);
  await checkTrial(device, { ...trial, ...many });
  await checkTrial(device, { ...trial, batch: 5, numHeads: 3, numKvHeads: 1 });
});

test("65 537 heads", { timeout: 300_000 }, async () => {
  using device = cuda();
  const sizes = { ...trialOf(4, "float32"), numHeads: 65_537, numKvHeads: 65_537, mask: masks.full().slices(1, 2) };
  const one = { queries: { length: 1, placement: contiguous() }, keys: { length: 2, placement: contiguous() } };
  const trial: Trial = { ...sizes, ...one, sees: () => true };
  const [found, expected] = [await attendLocally(device, trial), answerOf(trial)];
  for (const name of ["out", "lse", "dq", "dk", "dv"] as const satisfies (keyof AttentionNumbers)[]) {
    checkClose(found[name], expected[name], 1e-5 * (1 + magnitude(expected[name])), name);
  }
});
