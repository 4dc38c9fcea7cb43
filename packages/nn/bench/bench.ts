// Measures the time of the fused loss relative to that of the loss on all logits, and the time of optimizers relative
// to a += b over the same number of elements. Per element, a += b accesses 12 bytes of memory, a step 28, and clipping
// 16. Prints one line per case.
//   npm run build && npm run bench
import { type Context, fromArray, init, Linear, Module, randn, type Tensor } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { AdamW, clipGradNorm, crossEntropy, Dropout, linearCrossEntropy, ScheduleFreeAdamW } from "../dist/index.js";

const numRounds = 25;

class ParameterSet extends Module {
  constructor(ctx: Context, shapes: readonly (readonly number[])[]) {
    super();
    for (const [i, shape] of shapes.entries()) this.addParameter(`p${i}`, randn(ctx, shape)).grad = randn(ctx, shape);
  }
}

/** Returns the best time of each function in ms. They are measured in turn, so that a load peak affects all of them. */
async function measureBest<Names extends string>(
  ctx: Context,
  functions: Record<Names, () => void>,
): Promise<Record<Names, number>> {
  const entries = Object.entries(functions) as [Names, () => void][];
  const bestMs = Object.fromEntries(entries.map(([name]) => [name, Infinity])) as Record<Names, number>;
  for (let round = 0; round < numRounds; round++) {
    for (const [name, runOnce] of entries) {
      await ctx.device.stream.synchronize();
      const start = performance.now();
      runOnce();
      await ctx.device.stream.synchronize();
      bestMs[name] = Math.min(bestMs[name], performance.now() - start);
    }
  }
  return bestMs;
}

const layer = [[384, 128], [384], [128, 128], [128], [512, 128], [512], [128, 512], [128], [128], [128], [128], [128]];
const models = {
  "1 tensor of 10 M elements": [[10_000_000]],
  "144 tensors of 2.4 M elements in total": Array.from({ length: 12 }, () => layer).flat(),
};

await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
for (const [name, shapes] of Object.entries(models)) {
  using model = new ParameterSet(ctx, shapes);
  using adamW = new AdamW(model);
  using scheduleFreeAdamW = new ScheduleFreeAdamW(model);
  const size = model.parameters().reduce((sum, each) => sum + each.size, 0);
  using a = randn(ctx, [size]);
  using b = randn(ctx, [size]);
  const { sum, ...bestStepMs } = await measureBest(ctx, {
    sum: () => ctx.device.kernels.binary("add", a, a, b),
    AdamW: () => adamW.step(),
    ScheduleFreeAdamW: () => scheduleFreeAdamW.step(),
    clipGradNorm: () => clipGradNorm(model, 1).dispose(),
  });
  const ratios = Object.entries(bestStepMs).map(
    ([optimizerName, ms]) => `${optimizerName} ${ms.toFixed(2)} ms (${(ms / sum).toFixed(2)} ×)`,
  );
  console.log(`parameters, ${name}: a += b ${sum.toFixed(2)} ms (1 ×), ${ratios.join(", ")}`);
}

using x = randn(ctx, [4096, 1024]);
using y = randn(ctx, [4096, 1024]);
using targets = fromArray(
  ctx,
  Array.from({ length: 4096 }, (_, i) => i % 1024),
  [4096],
);
x.requiresGrad = true;
const dropout = new Dropout(ctx, 0.1);
const { sum, ...bestLayerMs } = await measureBest(ctx, {
  sum: () => ctx.device.kernels.binary("add", y, y, y),
  dropout: () => dropout.forward(x).dispose(),
  "cross-entropy and its gradient": () => {
    using loss = crossEntropy(ctx, x, targets);
    loss.backward();
    x.grad?.dispose();
    x.grad = null;
  },
});
const ratios = Object.entries(bestLayerMs).map(
  ([layerName, ms]) => `${layerName} ${ms.toFixed(2)} ms (${(ms / sum).toFixed(2)} ×)`,
);
console.log(`tensors [4096, 1024]: a += b ${sum.toFixed(2)} ms (1 ×), ${ratios.join(", ")}`);

const [rows, numFeatures, numClasses] = [1024, 256, 32_768];
for (const dtype of ["float32", "bfloat16"] as const) {
  using head = new Linear(ctx, numFeatures, numClasses, { bias: false, dtype });
  using samples = randn(ctx, [rows, numFeatures]);
  const hidden = samples.to(dtype).detach();
  hidden.requiresGrad = true;
  using labels = fromArray(
    ctx,
    Array.from({ length: rows }, (_, i) => (7919 * i) % numClasses),
    [rows],
  );
  const runBackward = (loss: Tensor): void => {
    loss.backward();
    loss.dispose();
    head.zeroGrad();
    hidden.grad?.dispose();
    hidden.grad = null;
  };
  const { runUnfused: unfusedMs, ...fusedMs } = await measureBest(ctx, {
    runUnfused() {
      using logits = head.forward(hidden);
      runBackward(crossEntropy(ctx, logits, labels));
    },
    "chunks of 128 rows": () => runBackward(linearCrossEntropy(ctx, hidden, head, labels, { chunkRows: 128 })),
    "chunks of 256 rows": () => runBackward(linearCrossEntropy(ctx, hidden, head, labels)),
    "chunks of 512 rows": () => runBackward(linearCrossEntropy(ctx, hidden, head, labels, { chunkRows: 512 })),
  });
  const ratios = Object.entries(fusedMs).map(([lossName, ms]) => `${lossName} ${(ms / unfusedMs).toFixed(2)} ×`);
  console.log(
    `linear and cross-entropy, ${rows} × ${numFeatures} × ${numClasses}, ${dtype}: separate ${unfusedMs.toFixed(0)} ms (1 ×); fused in ${ratios.join(", ")}`,
  );
}
