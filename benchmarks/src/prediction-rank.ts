// One rank of the prediction cases: calibrates, and takes the steps that are predicted, in turns.
import * as mosaic from "@mosaic/attention";
import { spansLength } from "@mosaic/attention/core";
import { calibrate } from "@mosaic/planner";
import { now } from "./case.ts";
import { backends, DTYPE, HEAD_DIM, HEADS, type PredictionJob, type Round, type StepProblem } from "./prediction.ts";

const { problems, rounds, steps } = JSON.parse(process.argv[2]!) as PredictionJob;

await using ctx = await mosaic.init({ device: mosaic.cpu({ threads: 1 }) });

// Round 0 warms up and is not reported.
for (let round = 0; round <= rounds; round++) {
  const profile = await calibrate({ contexts: [ctx], dtypes: [DTYPE], headDims: [HEAD_DIM] });
  const taken: Round["intervals"] = [];
  for (const problem of problems) taken.push(await runSteps(problem));
  const reported: Round = { profile, intervals: taken };
  if (round > 0) console.log(JSON.stringify(reported));
}

/** When several steps, one after the other, began and ended on this rank: attention forward and backward, as `record` writes it down. */
async function runSteps({ backend: name, n }: StepProblem): Promise<{ begin: number; end: number }> {
  const backend = backends[name]();
  const layout = mosaic.layoutOf({
    mesh: ctx.mesh.shape,
    axes: backend.axes,
    placement: mosaic.contiguous(),
    length: n,
  });
  const rows = spansLength(layout.spans(ctx.mesh.coordinate));
  const draw = (): mosaic.Tensor => mosaic.randn(ctx, [1, HEADS, rows, HEAD_DIM], { dtype: DTYPE });
  using q = draw();
  using k = draw();
  using v = draw();
  using dOut = draw();
  const inputs = [q, k, v];
  for (const input of inputs) input.requiresGrad = true;
  const step = async (): Promise<void> => {
    using out = mosaic.attention(ctx, q, k, v, { backend, mask: mosaic.masks.full(), queries: layout, keys: layout });
    out.backward(dOut);
    await ctx.device.stream.synchronize();
    for (const input of inputs) {
      input.grad?.dispose();
      input.grad = null;
    }
  };
  await step();
  ctx.world.barrier().wait();
  await ctx.device.stream.synchronize();
  const begin = now();
  for (let i = 0; i < steps; i++) await step();
  return { begin, end: now() };
}
