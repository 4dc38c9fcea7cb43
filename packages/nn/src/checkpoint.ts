import { type Context, checkpoint as recompute, type Tensor } from "@mosaic/core";

/**
 * Runs `body` and keeps only its inputs; the backward computes the rest again (Chen et al. 2016). Core's `checkpoint`, and
 * dropout inside draws the same zeros the second time.
 *
 * @example
 * ```ts
 * import { init, ones, sum } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { checkpoint, MLP } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using mlp = new MLP(ctx, { embedDim: 4, dropout: 0.1 });
 * using x = ones(ctx, [1, 3, 4]);
 * using y = checkpoint(ctx, (x) => mlp.forward(x), x);
 * using loss = sum(y);
 * loss.backward();
 * mlp.fc1.weight.grad?.shape; // => [16, 4]
 * ```
 */
export function checkpoint<Inputs extends readonly Tensor[]>(
  ctx: Context,
  body: (...inputs: Inputs) => Tensor,
  ...inputs: Inputs
): Tensor {
  const start = ctx.randomStream;
  let runs = 0;
  return recompute(
    (...each: Inputs) => {
      if (runs++ === 0) return body(...each);
      const now = ctx.randomStream;
      ctx.randomStream = start;
      try {
        return body(...each);
      } finally {
        ctx.randomStream = now;
      }
    },
    ...inputs,
  );
}
