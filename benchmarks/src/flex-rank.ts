// One rank of the flex cases. Calibrates, and runs steps of each variant in turns.
import { execFileSync } from "node:child_process";
import * as mosaic from "@mosaic/attention";
import { calibrate } from "@mosaic/planner";
import { timeSteps } from "./attention-steps.ts";
import {
  type FlexJob,
  type FlexRound,
  type FlexVariant,
  HEAD_DIM,
  HEADS,
  createMask,
  createStrategy,
  TOKENS,
} from "./flex.ts";

const { spec, variants, rounds, isPredicted } = JSON.parse(process.argv[2]!) as FlexJob;
// Pins the process to one core. Threads that start later inherit the affinity.
if (isPredicted) execFileSync("taskset", ["-apc", process.env["RANK"]!, String(process.pid)]);

await using ctx = await mosaic.init({ device: mosaic.cpu({ threads: 1 }) });

// Round 0 is warm-up and is not reported.
for (let round = 0; round <= rounds; round++) {
  const profile = isPredicted
    ? await calibrate({ contexts: [ctx], dtypes: ["float32"], headDims: [HEAD_DIM], repetitions: 3 })
    : null;
  const intervals = [];
  for (const variant of variants) intervals.push(await runSteps(variant));
  const report: FlexRound = { profile, intervals };
  if (round > 0) console.log(JSON.stringify(report));
}

/** Runs two steps and returns when they began and ended on this rank. */
function runSteps(variant: FlexVariant): Promise<{ begin: number; end: number }> {
  const mask = createMask(spec);
  const { backend, placement } = createStrategy(variant, mask, ctx.size);
  const sizes = { length: TOKENS, numHeads: HEADS, headDim: HEAD_DIM, dtype: "float32" } as const;
  return timeSteps(ctx, { backend, mask, placement, ...sizes }, 2);
}
