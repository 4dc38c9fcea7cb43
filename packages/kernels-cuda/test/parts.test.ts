import "./emulated.ts";
import { runLocalAttention, type Trial } from "@mosaic/conformance";
import { contiguous, type Slice } from "@mosaic/core";
import { expect, test } from "vitest";
import { cuda } from "../src/index.ts";
import { checkTrial, createTrial } from "./trials.ts";

/** Causal documents of 3, 4 and 5 tokens in turn, after a prefix of 10 that is visible to all. */
const documents: readonly Slice[] = Array.from({ length: 150 }, (_, i) => {
  const start = 10 + 12 * Math.floor(i / 3) + [0, 3, 7][i % 3]!;
  const end = start + 3 + (i % 3);
  return { q0: start, q1: end, k0: start, k1: end, type: "causal" };
});
const length = documents.at(-1)!.q1;
const mask: readonly Slice[] = [{ q0: 0, q1: length, k0: 0, k1: 10, type: "full" }, ...documents];
const trial: Trial = {
  ...createTrial(32, "bfloat16"),
  mask,
  maskMod: (q: number, k: number) => k < 10 || (k <= q && documents.some(({ q0, q1 }) => q0 <= q && q < q1 && q0 <= k)),
  queries: { length, placement: contiguous() },
  keys: { length, placement: contiguous() },
};

test("parts that share rows or keys match the reference", async () => {
  using device = cuda();
  await checkTrial(device, trial);
});

/** Creates samples with the given numbers of tokens at the start of 300 rows, each with a causal mask. */
function createSampleTrial(lengths: readonly number[], dtype: Trial["dtype"]): Trial {
  const rows = { length: 300, placement: contiguous() };
  const causalSlices = (length: number): readonly Slice[] => [{ q0: 0, q1: length, k0: 0, k1: length, type: "causal" }];
  return {
    ...createTrial(32, dtype),
    batch: lengths.length,
    mask: [],
    modifiers: { sampleMasks: lengths.map(causalSlices) },
    maskMod: (q: number, k: number, sample = 0) => k <= q && q < lengths[sample]!,
    queries: rows,
    keys: rows,
  };
}

test.each([
  {
    masks: "different masks take one launch each, and none if they have no visible keys",
    lengths: [300, 120, 0],
    dtype: "bfloat16",
    launches: 2,
  },
  { masks: "different masks take one launch each in float32", lengths: [120, 300], dtype: "float32", launches: 2 },
  { masks: "equal masks take one launch in total", lengths: [300, 300, 300], dtype: "bfloat16", launches: 1 },
] as const)("samples with $masks", async ({ lengths, dtype, launches }) => {
  using device = cuda();
  device.startTrace();
  await checkTrial(device, createSampleTrial(lengths, dtype));
  const kernelNames = (await device.stopTrace()).map(({ name }) => name).filter((name) => name.startsWith("attend"));
  const expected = ["attend", "attendKeys", "attendQueries"].flatMap((name) => new Array<string>(launches).fill(name));
  expect(kernelNames.map((name) => name.replace(/(Hopper)?_.*/, ""))).toEqual(expected);
});

test("hundreds of parts are combined in few launches", async () => {
  using device = cuda();
  device.startTrace();
  await runLocalAttention(device, trial);
  const kernelNames = (await device.stopTrace()).map(({ name }) => name);
  // The prefix is cut at the documents' ends into 151 row parts: 301 in all, 64 per launch. In keys, nothing is cut.
  const countLaunches = (kernel: string): number => kernelNames.filter((name) => name.startsWith(kernel)).length;
  expect(countLaunches("attend_") + countLaunches("attendHopper_")).toBe(5);
  expect(countLaunches("attendQueries")).toBe(5);
  expect(countLaunches("attendKeys")).toBe(3);
});
