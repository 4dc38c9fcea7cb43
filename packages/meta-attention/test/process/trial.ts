import type { Trial } from "../step.ts";

/** The trial that the ranks of the process test run. */
export const trial: Trial = {
  options: {
    embedDim: 16,
    numHeads: 2,
    summaryDim: 8,
    metaHeads: 2,
    topK: 1,
    chunksPerRank: 2,
    combine: "exact",
    causal: true,
    maxMissedMass: 0.5,
    routingNoise: 0.1,
  },
  batch: 2,
  length: 45,
  seed: 7,
  losses: [0.1, 0.1, 0.1],
};
