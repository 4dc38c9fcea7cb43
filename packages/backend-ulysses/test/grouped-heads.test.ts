import {
  backendTrials,
  checkTrials,
  perturbContext,
  type Measurement,
  measureBackend,
  runOnWorld,
  placements,
  poisonMemory,
  type Trial,
} from "@mosaic/conformance";
import { expect, test } from "vitest";
import { ulysses } from "../src/index.ts";
import { makeWorld } from "../../../vitest.world.ts";

/** Numbers of query heads, KV heads and ranks. */
const cases = [
  { numHeads: 3, numKvHeads: 3, size: 4, why: "one rank has no heads" },
  { numHeads: 8, numKvHeads: 2, size: 3, why: "a rank's heads begin in one group and end in the next" },
  { numHeads: 12, numKvHeads: 3, size: 2, why: "a rank has one and a half groups" },
  { numHeads: 10, numKvHeads: 5, size: 3, why: "a rank has the end of one group and a whole one" },
  { numHeads: 6, numKvHeads: 1, size: 4, why: "every rank needs the one KV head" },
  { numHeads: 7, numKvHeads: 7, size: 5, why: "some ranks have two heads, others one" },
  { numHeads: 2, numKvHeads: 1, size: 7, why: "most ranks only pass rows" },
] as const;

function createTrials({ numHeads, numKvHeads, size }: (typeof cases)[number]): Trial[] {
  const mesh = { sp: size };
  return placements().flatMap((placement, i) =>
    backendTrials(
      { mesh, axes: ["sp"] },
      {
        placement,
        dtype: "float32",
        seed: 31 * (i + 1),
        extents: [{ queries: 26, keys: 31, masks: ["full", "causal", "slidingWindow"] }],
      },
    ).map((trial) => ({ ...trial, name: `${trial.name} (${numHeads}/${numKvHeads} heads)`, numHeads, numKvHeads })),
  );
}

test.each(
  cases.map((each) => [`${each.numHeads}/${each.numKvHeads} heads on ${each.size} ranks`, each.why, each] as const),
)("%s are as exact as on one device: %s", async (_, __, headCase) => {
  const trials = createTrials(headCase);
  expect(trials.length).toBe(15);
  const ranks = await runOnWorld(makeWorld, { size: headCase.size, wrapDevice: poisonMemory }, async (ctx) => {
    const perturbedCtx = perturbContext(ctx, { completion: "late", seed: 9 });
    const measurements: Measurement[] = [];
    for (const trial of trials) measurements.push(await measureBackend(perturbedCtx, ulysses(), trial));
    return measurements;
  });
  checkTrials("ulysses", ranks);
});
