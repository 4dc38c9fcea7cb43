import { backendTrials, checkTrials, measureBackend, runOnWorld, placements, type Trial } from "@mosaic/conformance";
import { test } from "vitest";
import { mesh2d } from "../src/index.ts";
import { formatTitle, scheduleVariants } from "./ways.ts";
import { makeWorld } from "../../../vitest.world.ts";

const mesh = { sp: 6 };
const extents = [{ queries: 23, keys: 23, masks: ["causal", "sliceMask"] }];
const cases = scheduleVariants.flatMap((variant) =>
  [1, 2, 8].map((numKvHeads) => [formatTitle(variant), numKvHeads, variant] as const),
);

test.each(cases)(
  "%s: eight query heads with %d KV heads are as exact as on one device",
  async (_, numKvHeads, variant) => {
    const options = { placement: placements()[1]!, dtype: "float32", seed: 11 } as const;
    const trials = backendTrials({ mesh, axes: ["sp"] }, { ...options, extents }).map(
      (trial): Trial => ({ ...trial, numHeads: 8, numKvHeads, headDim: 8 }),
    );
    const backend = mesh2d({ shape: [2, 3], ...variant });
    const ranks = await runOnWorld(makeWorld, { size: 6, mesh }, async (ctx) => {
      const measurements = [];
      for (const trial of trials) measurements.push(await measureBackend(ctx, backend, trial));
      return measurements;
    });
    checkTrials(backend.name, ranks);
  },
);
