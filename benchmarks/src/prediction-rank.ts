// One rank of the prediction cases. Calibrates and runs the predicted steps, in turns.
import * as mosaic from "@mosaic/attention";
import { calibrate } from "@mosaic/planner";
import { timeSteps } from "./attention-steps.ts";
import { backends, DTYPE, HEAD_DIM, HEADS, type PredictionJob, type Round, type StepProblem } from "./prediction.ts";

const { problems, rounds, steps } = JSON.parse(process.argv[2]!) as PredictionJob;

await using ctx = await mosaic.init({ device: mosaic.cpu({ threads: 1 }) });

// Round 0 is warm-up and is not reported.
for (let round = 0; round <= rounds; round++) {
  const profile = await calibrate({ contexts: [ctx], dtypes: [DTYPE], headDims: [HEAD_DIM] });
  const intervals: Round["intervals"] = [];
  for (const problem of problems) intervals.push(await runSteps(problem));
  const report: Round = { profile, intervals };
  if (round > 0) console.log(JSON.stringify(report));
}

/**
 * Runs the steps of a problem and returns when they began and ended on this rank. They are attention forward and
 * backward, as in the record.
 */
function runSteps({ backend, n }: StepProblem): Promise<{ begin: number; end: number }> {
  const problem = { backend: backends[backend](), mask: mosaic.masks.full(), placement: mosaic.contiguous() };
  return timeSteps(ctx, { ...problem, length: n, numHeads: HEADS, headDim: HEAD_DIM, dtype: DTYPE }, steps);
}
