// One rank of the flex cases: calibrates, and takes a step of each contender with each mask, in turns.
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
  maskOf,
  type MaskSpec,
  strategyOf,
  TOKENS,
} from "./flex.ts";

const { specs, variants: contenders, rounds, areCoresPinned: isPinned } = JSON.parse(process.argv[2]!) as FlexJob;
// Threads that begin later keep to the core as well.
if (isPinned) execFileSync("taskset", ["-apc", process.env["RANK"]!, String(process.pid)]);

await using ctx = await mosaic.init({ device: mosaic.cpu({ threads: 1 }) });

// Round 0 warms up and is not reported.
for (let round = 0; round <= rounds; round++) {
  const profile = await calibrate({ contexts: [ctx], dtypes: ["float32"], headDims: [HEAD_DIM], repetitions: 3 });
  const intervals = [];
  for (const spec of specs) {
    const steps = [];
    for (const contender of contenders) steps.push(await takeSteps(spec, contender));
    intervals.push(steps);
  }
  const reported: FlexRound = { profile, intervals };
  if (round > 0) console.log(JSON.stringify(reported));
}

/** When two steps began and ended on this rank. */
function takeSteps(spec: MaskSpec, contender: FlexVariant): Promise<{ begin: number; end: number }> {
  const mask = maskOf(spec);
  const { backend, placement } = strategyOf(contender, mask, ctx.size);
  const sizes = { length: TOKENS, numHeads: HEADS, headDim: HEAD_DIM, dtype: "float32" } as const;
  return timeSteps(ctx, { backend, mask, placement, ...sizes }, 2);
}
