import {
  backendTrials,
  checkTrials,
  perturbContext,
  type Measurement,
  measureBackend,
  runOnWorld,
  placements,
  poisonMemory,
} from "@mosaic/conformance";
import { expect, test } from "vitest";
import { composed } from "../src/index.ts";
import { makeWorld } from "../../../vitest.world.ts";

// With 8 heads in groups of 4, three ranks have 3, 3 and 2 heads. The middle rank has the end of one group and the
// start of the next, and runs the ring once for each. With 2 heads, one rank has none, and nor has any rank of its
// ring.
test.each([
  { numHeads: 8, numKvHeads: 2 },
  { numHeads: 2, numKvHeads: 1 },
])("composed is correct for $numHeads/$numKvHeads heads on 3 ranks, in rings of 2", async (numHeads) => {
  const strategy = composed({ meshShape: { head: 3, seq: 2 } });
  const mesh = strategy.meshFor(6);
  const extents = [{ queries: 26, keys: 31, masks: ["full", "causal", "slidingWindow"] }];
  const trials = placements().flatMap((placement, i) =>
    backendTrials({ mesh, axes: strategy.axes }, { placement, dtype: "float32", seed: 17 * (i + 1), extents }).map(
      (trial) => ({ ...trial, ...numHeads }),
    ),
  );
  expect(trials.length).toBe(15);
  const ranks = await runOnWorld(makeWorld, { size: 6, mesh, wrapDevice: poisonMemory }, async (ctx) => {
    const rank = perturbContext(ctx, { completion: "late", seed: 3 });
    const measurements: Measurement[] = [];
    for (const trial of trials) measurements.push(await measureBackend(rank, strategy, trial));
    expect(rank.numInFlight()).toBe(0);
    return measurements;
  });
  checkTrials("composed", ranks);
});
