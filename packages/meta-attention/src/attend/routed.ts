import { keep, type Tensor } from "@mosaic/core";
import type { Attending, Qkv } from "./attending.ts";
import { routedBackward } from "./backward.ts";
import { pairOf, rowsOf } from "./views.ts";

/**
 * Makes what was attended the result of a differentiable operation on q, k and v and the router's numbers [B,c,N]: the chunks'
 * weights if soft, the logarithms of the routing distribution if exact. Takes `attending`.
 * Returns [B,S,parts·H·D] in the dtype of q.
 */
export function routed(attending: Attending, { q, k, v }: Qkv, router: Tensor): Tensor {
  if (attending.plan.combine === "soft") weigh(attending, router);
  const output = attending.result();
  const kept = keep(router.detach());
  return output.record([q, k, v, router], {
    name: "routedAttention",
    backward: (dOutput) => routedBackward(attending, kept, dOutput),
    free() {
      kept.dispose();
      attending[Symbol.dispose]();
    },
  });
}

/** combined ← Σ w·o over chosen chunks; where none was chosen it stays what it is over the own chunk. */
function weigh(attending: Attending, weights: Tensor): void {
  const { combined, looked, plan, q } = attending;
  const { kernels } = q.device;
  for (const [query, chunk] of plan.chunks.own.entries()) {
    for (const [b0, b1] of attending.runsThat(true, query)) {
      using rows = rowsOf(combined.out, chunk, b0, b1);
      kernels.fill(rows, 0);
    }
  }
  for (const { query, chunk, b0, b1, state } of looked) {
    using weight = pairOf(weights, { b0, b1, i: query, j: chunk.index }, 4);
    using weighed = q.device.empty(state!.out.shape, "float32");
    using sum = rowsOf(combined.out, plan.chunks.own[query]!, b0, b1);
    kernels.binary("mul", weighed, state!.out, weight);
    kernels.binary("add", sum, sum, weighed);
  }
}
