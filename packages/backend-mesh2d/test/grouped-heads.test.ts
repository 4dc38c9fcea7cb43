import { backendTrials, checkTrials, measureBackend, onWorld, placements, type Trial } from "@mosaic/conformance";
import { test } from "vitest";
import { mesh2d } from "../src/index.ts";
import { formatTitle, ways } from "./ways.ts";
import { makeWorld } from "../../../vitest.world.ts";

const mesh = { sp: 6 };
const extents = [{ queries: 23, keys: 23, masks: ["causal", "sliceMask"] }];
const cases = ways.flatMap((way) => [1, 2, 8].map((numKvHeads) => [formatTitle(way), numKvHeads, way] as const));

test.each(cases)("%s: eight query heads on %d KV heads, as exact as one device", async (_, numKvHeads, way) => {
  const options = { placement: placements()[1]!, dtype: "float32", seed: 11 } as const;
  const trials = backendTrials({ mesh, axes: ["sp"] }, { ...options, extents }).map(
    (trial): Trial => ({ ...trial, numHeads: 8, numKvHeads, headDim: 8 }),
  );
  const backend = mesh2d({ shape: [2, 3], ...way });
  const ranks = await onWorld(makeWorld, { size: 6, mesh }, async (ctx) => {
    const measured = [];
    for (const trial of trials) measured.push(await measureBackend(ctx, backend, trial));
    return measured;
  });
  checkTrials(backend.name, ranks);
});
