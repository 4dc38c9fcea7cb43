// One rank of a job: measures all trials of its arrangement and writes the results for the test to check.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { local } from "@mosaic/collectives-local";
import { formatMesh, measureArrangement, poisonMemory } from "@mosaic/conformance";
import { init } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { exchangeArrangements, nestedArrangements, singleAxisArrangements } from "../arrangements.ts";

const [name, directory] = process.argv.slice(2);
const arrangement = [...exchangeArrangements, ...singleAxisArrangements, ...nestedArrangements].find(
  ({ mesh }) => formatMesh(mesh) === name,
)!;
const device = poisonMemory(cpu({ threads: 1 }));
await using ctx = await init({ device, collectives: local(), mesh: arrangement.mesh, timeout: 20 });
const measurements = await measureArrangement(ctx, arrangement);
writeFileSync(join(directory!, `${ctx.rank}.json`), JSON.stringify(measurements));
