import { dispatch, flex } from "@mosaic/backend-flex";
import { type Mask, masks } from "@mosaic/core";
import { expect, test } from "vitest";
import { type Profile, predict, profiles } from "../src/index.ts";

// flex chooses its stages by a cost model of its own. The simulation of the backend's own code evaluates the choice;
// see benchmarks/dispatch/stages.ts, of which these are small cases. The worst number of stages takes 1.1 to 1.7 times
// as long as the best.

const ranks = 8;
const tokens = ranks * 4096;
const sizes = { tokens, numHeads: 16, numKvHeads: 4, headDim: 128, dtype: "bfloat16", mesh: { sp: ranks } } as const;
const profilesByTopology: Readonly<Record<string, Profile>> = {
  "one rank a node": { ...profiles["h100-ib400"], ranksPerNode: 1 },
  "one node": profiles["h100-ib400"],
};
const lengths = [1024, 300, 9000, 2700, 12, 5000, 6732, 8000];
/** Masks, and the largest ratio of the time with the chosen number of stages to the best. */
const cases: readonly (readonly [string, Mask, number])[] = [
  ["full", masks.full(), 1.07],
  ["causal", masks.causal(), 1.07],
  ["window of 2048", masks.slidingWindow(2048), 1.07],
  ["documents", masks.documents(lengths, "causal"), 1.08],
];

for (const [name, profile] of Object.entries(profilesByTopology)) {
  test.each(cases)(
    `flex chooses a number of stages whose time is close to the best: %s, ${name}`,
    (_, mask, maxRatio) => {
      const placement = dispatch({ mask, length: tokens, ranks, chunkSize: 256 });
      const predictWithStages = (stages: number | undefined) =>
        predict({ ...sizes, mask, placement, backend: flex({ ...(stages !== undefined && { stages }) }) }, profile, {
          keep: () => false,
        });
      const chosenPrediction = predictWithStages(undefined);
      const fixedPredictions = [0, 1, 2, 4].map(predictWithStages);
      for (const pass of ["forwardSeconds", "backwardSeconds"] as const) {
        const passSeconds = fixedPredictions.map((each) => each[pass]);
        expect(chosenPrediction[pass]).toBeLessThanOrEqual(maxRatio * Math.min(...passSeconds));
      }
    },
  );
}
