// One rank of the flex cases: calibrates, and takes a step of each contender with each mask, in turns.
import { execFileSync } from "node:child_process";
import * as mosaic from "@mosaic/attention";
import { spansLength } from "@mosaic/attention/core";
import { calibrate } from "@mosaic/planner";
import { now } from "./case.ts";
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
    for (const contender of contenders) steps.push(await takeStep(spec, contender));
    intervals.push(steps);
  }
  const reported: FlexRound = { profile, intervals };
  if (round > 0) console.log(JSON.stringify(reported));
}

/** When a step, attention forward and backward, began and ended on this rank; one before it warms up. */
async function takeStep(spec: MaskSpec, contender: FlexVariant): Promise<{ begin: number; end: number }> {
  const mask = maskOf(spec);
  const { backend, placement } = strategyOf(contender, mask, ctx.size);
  const layout = mosaic.layoutOf({ mesh: ctx.mesh.shape, axes: backend.axes, placement, length: TOKENS });
  const rows = spansLength(layout.spans(ctx.mesh.coordinate));
  const draw = (): mosaic.Tensor => mosaic.randn(ctx, [1, HEADS, rows, HEAD_DIM]);
  using q = draw();
  using k = draw();
  using v = draw();
  using dOut = draw();
  const inputs = [q, k, v];
  for (const input of inputs) input.requiresGrad = true;
  const step = async (): Promise<void> => {
    using out = mosaic.attention(ctx, q, k, v, { backend, mask, queries: layout, keys: layout });
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
  await step();
  await step();
  return { begin, end: now() };
}
