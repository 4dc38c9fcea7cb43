// One rank of a job. Runs a training step, and writes the result to a file for the test.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { local } from "@mosaic/collectives-local";
import { init } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { runStep } from "../step.ts";
import { trial } from "./trial.ts";

await using ctx = await init({ device: cpu({ threads: 1 }), collectives: local(), timeout: 20 });
const { out, dx, gradients, chosen } = await runStep(ctx, trial);
const gradientArrays = Object.fromEntries(
  Object.entries(gradients).map(([name, values]) => [name, Array.from(values)]),
);
const result = { out: Array.from(out), dx: Array.from(dx), gradients: gradientArrays, chosen };
writeFileSync(join(process.argv[2]!, `${ctx.rank}.json`), JSON.stringify(result));
