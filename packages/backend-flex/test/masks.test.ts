import {
  checkMeasurements,
  isPairVisible,
  maskKinds,
  maskKindsLength,
  slicesToMaskMod,
  measureBackend,
  runOnWorld,
  placements,
  randomSlices,
  type Trial,
} from "@mosaic/conformance";
import { dtypeBytes, type Slice, type SliceType } from "@mosaic/core";
import { expect, test } from "vitest";
import { flex } from "../src/index.ts";
import { makeWorld } from "../../../vitest.world.ts";
import { countRequiredRows } from "./trial-layouts.ts";

const types: readonly SliceType[] = ["full", "causal", "inverseCausal", "bidirectionalCausal"];

const sizes = [
  { batch: 1, numHeads: 2, numKvHeads: 2, headDim: 8 },
  { batch: 2, numHeads: 4, numKvHeads: 2, headDim: 4 },
  { batch: 3, numHeads: 3, numKvHeads: 1, headDim: 5 },
] as const;

const stageOptions = [{}, { stages: 0 }, { stages: 1 }, { stages: { forward: 3, backward: 2 } }] as const;

function createTrial(
  name: string,
  mask: readonly Slice[],
  {
    size,
    i,
    queries = maskKindsLength,
    keys = maskKindsLength,
  }: { size: number; i: number; queries?: number; keys?: number },
): Trial {
  const placement = placements()[i % placements().length]!;
  const { headDim, ...otherSizes } = sizes[i % sizes.length]!;
  return {
    name: `${name}, ${placement.name}, ${size} ranks`,
    mesh: { sp: size },
    axes: ["sp"],
    ...otherSizes,
    headDim,
    dtype: "float32",
    scale: headDim ** -0.5,
    mask,
    maskMod: slicesToMaskMod(mask),
    queries: { length: queries, placement },
    keys: { length: keys, placement },
    seed: i,
  };
}

/**
 * Checks that results are as exact as on one device, and that all ranks together send each required row once in forward
 * and twice (as keys and as gradients) in backward.
 */
async function expectExact(size: number, trials: readonly Trial[]): Promise<void> {
  const rankResults = await runOnWorld(makeWorld, { size }, async (ctx) => {
    const results = [];
    for (const [i, trial] of trials.entries()) {
      const bytesBefore = ctx.world.traffic().bytesSent;
      const measurement = await measureBackend(ctx, flex(stageOptions[(i + size) % stageOptions.length]), trial);
      results.push({ measurement, bytesSent: ctx.world.traffic().bytesSent - bytesBefore });
    }
    return results;
  });
  for (const [i, trial] of trials.entries()) {
    checkMeasurements(
      "flex",
      rankResults.map((rank) => rank[i]!.measurement),
    );
    const { batch, numKvHeads, headDim, dtype } = trial;
    const bytesPerRow = 2 * batch * numKvHeads * headDim * (2 * dtypeBytes[dtype] + dtypeBytes.float32);
    const bytesSent = rankResults.reduce((sum, rank) => sum + rank[i]!.bytesSent, 0);
    expect(bytesSent, trial.name).toBe(countRequiredRows(trial) * bytesPerRow);
  }
}

test("the fifteen kinds of masks have slices that do not overlap, and use all slice types", () => {
  expect(Object.keys(maskKinds)).toHaveLength(15);
  for (const [name, mask] of Object.entries(maskKinds)) {
    for (let q = 0; q < maskKindsLength; q++) {
      for (let k = 0; k < maskKindsLength; k++) {
        const numSlices = mask.filter((each) => isPairVisible(each, q, k)).length;
        expect(numSlices, `${name}: query ${q}, key ${k}`).toBeLessThanOrEqual(1);
      }
    }
  }
  expect(new Set(Object.values(maskKinds).flatMap((mask) => mask.map(({ type }) => type)))).toEqual(new Set(types));
});

for (const size of [1, 2, 3, 4, 5, 6, 7, 8]) {
  test(`${size} ranks: every kind of mask is as exact as on one device`, async () => {
    const trials = Object.entries(maskKinds).map(([name, mask], i) => createTrial(name, mask, { size, i: i + size }));
    await expectExact(size, trials);
  });

  test(`${size} ranks: random slices, queries and keys of different lengths are as exact as on one device`, async () => {
    const trials = Array.from({ length: 25 }, (_, i) => {
      const [queries, keys] = [17 + ((7 * i) % 29), 13 + ((11 * i) % 37)];
      return createTrial(`random ${i}`, randomSlices(queries, keys, 100 * size + i), { size, i, queries, keys });
    });
    await expectExact(size, trials);
  });
}
