// One rank of a job: measures all schedule variants on one grid and writes the results for the test to check.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { local } from "@mosaic/collectives-local";
import {
  backendTrials,
  check,
  perturbContext,
  type Measurement,
  measureBackend,
  placements,
  poisonMemory,
} from "@mosaic/conformance";
import { init } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { mesh2d } from "../../src/index.ts";
import { formatTitle, scheduleVariants } from "../ways.ts";

const [rows, columns] = process.argv.slice(2, 4).map(Number) as [number, number];
const mesh = { sp: rows * columns };
const device = poisonMemory(cpu({ threads: 1 }));
await using ctx = await init({ device, collectives: local(), mesh, timeout: 20 });
const measurements: Measurement[] = [];
for (const [i, variant] of scheduleVariants.entries()) {
  // Ranks run freely: the messages for which one waits may have been sent long ago, or may not have been posted yet.
  const perturbedCtx = perturbContext(ctx, { completion: "soon", seed: 3 });
  const backend = mesh2d({ shape: [rows, columns], ...variant, computeToTransfer: 0.5 });
  const extents = [{ queries: 41, keys: 41 }];
  for (const trial of backendTrials(
    { mesh, axes: ["sp"] },
    { placement: placements()[i + 1]!, dtype: "float32", seed: 1, extents },
  )) {
    measurements.push(
      await measureBackend(perturbedCtx, backend, { ...trial, name: `${formatTitle(variant)}, ${trial.name}` }),
    );
  }
  check(
    perturbedCtx.numInFlight() === 0,
    `expected 0 collectives in flight, received ${perturbedCtx.numInFlight()}; call wait() on each`,
  );
}
writeFileSync(join(process.argv[4]!, `${ctx.rank}.json`), JSON.stringify(measurements));
