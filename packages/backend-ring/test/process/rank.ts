// One rank of a job: measures all trials of its arrangement and writes the results for the test to check.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { local } from "@mosaic/collectives-local";
import {
  check,
  formatMesh,
  type MakeWorld,
  measureArrangement,
  measureModule,
  moduleTrials,
  perturbContext,
  poisonMemory,
  runOnOneDevice,
} from "@mosaic/conformance";
import { init } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { nestedArrangements, singleAxisArrangements } from "../arrangements.ts";

const [name, directory] = process.argv.slice(2);
const arrangement = [...singleAxisArrangements, ...nestedArrangements].find(({ mesh }) => formatMesh(mesh) === name)!;
const device = poisonMemory(cpu({ threads: 1 }));
await using ctx = await init({ device, collectives: local(), mesh: arrangement.mesh, timeout: 20 });
const measurements = await measureArrangement(ctx, arrangement);

const makeSingleRankWorld: MakeWorld = async () => [await init({ device: cpu({ threads: 1 }), rank: 0, worldSize: 1 })];
for (const trial of moduleTrials()) {
  const singleDevice = await runOnOneDevice(makeSingleRankWorld, trial, arrangement);
  // A context numbers its random streams, so only a fresh context creates the same parameters as the single device.
  const perturbedCtx = perturbContext(ctx, { completion: "late", seed: 3 });
  measurements.push(await measureModule(perturbedCtx, { arrangement, trial, singleDevice }));
  check(
    perturbedCtx.numInFlight() === 0,
    `expected 0 collectives in flight, received ${perturbedCtx.numInFlight()}; call wait() on each`,
  );
}
writeFileSync(join(directory!, `${ctx.rank}.json`), JSON.stringify(measurements));
