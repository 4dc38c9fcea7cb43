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
const cases: readonly (readonly [string, Mask])[] = [
  ["full", masks.full()],
  ["causal", masks.causal()],
  ["window of 2048", masks.slidingWindow(2048)],
  ["documents", masks.documents(lengths, "causal")],
];

for (const [name, profile] of Object.entries(profilesByTopology)) {
  test.each(cases)(`flex chooses a number of stages whose time is within 8 % of the best: %s, ${name}`, (_, mask) => {
    const placement = dispatch({ mask, length: tokens, ranks, chunkSize: 256 });
    const predictWithStages = (stages: number | undefined) =>
      predict({ ...sizes, mask, placement, backend: flex({ ...(stages !== undefined && { stages }) }) }, profile, {
        keep: () => false,
      });
    const chosenPrediction = predictWithStages(undefined);
    const fixedPredictions = [0, 1, 2, 4].map(predictWithStages);
    for (const pass of ["forwardSeconds", "backwardSeconds"] as const) {
      const passSeconds = fixedPredictions.map((each) => each[pass]);
      expect(chosenPrediction[pass]).toBeLessThanOrEqual(1.08 * Math.min(...passSeconds));
    }
  });
}
