// One rank of a job: tries everything on its arrangement and leaves what it measured where the test will find it.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { local } from "@mosaic/collectives-local";
import {
  backendTrials,
  check,
  perturbed,
  formatMesh,
  type Measurement,
  measureBackend,
  placements,
  poisoned,
} from "@mosaic/conformance";
import { init } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { exchanges, nests, worlds } from "../arrangements.ts";

const [mesh, directory] = process.argv.slice(2);
const { backend, ...arrangement } = [...exchanges, ...worlds, ...nests].find((each) => formatMesh(each.mesh) === mesh)!;
const device = poisoned(cpu({ threads: 1 }));
await using ctx = await init({ device, collectives: local(), mesh: arrangement.mesh, timeout: 20 });
const measurements: Measurement[] = [];
const rank = perturbed(ctx, { completion: "late", seed: 3 });
for (const [i, placement] of placements().entries()) {
  const dtype = i % 2 === 0 ? "float32" : "bfloat16";
  for (const trial of backendTrials(arrangement, { placement, dtype, seed: 100 })) {
    measurements.push(await measureBackend(rank, backend, trial));
  }
}
check(rank.inFlight() === 0, `${rank.inFlight()} collectives were not waited for`);
writeFileSync(join(directory!, `${ctx.rank}.json`), JSON.stringify(measurements));
