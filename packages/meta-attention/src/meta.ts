// B batch (all axes but the sequence and the embedding), N chunks in the order of the sequence, c of them on this rank,
// S tokens here, H heads.
import { checkpoint, keep, type Linear, noGrad, scope, type Shape, type Tensor } from "@mosaic/core";
import { Attending, type Qkv } from "./attend/attending.ts";
import { routedBackward } from "./attend/backward.ts";
import type { AttentionMass } from "./attend/mass.ts";
import { pairOf, rowsOf } from "./attend/views.ts";
import type { BytesMoved } from "./bytes.ts";
import type { Certificate } from "./certificate/certificate.ts";
import type { Chunks } from "./chunks.ts";
import { project, type Projected, type QkvProjection } from "./projection.ts";
import type { Chosen } from "./route/choose.ts";

/** What the router's losses follow from: this rank's rows of the scores, with history; float32. */
export interface RouterRows {
  /** Scores and routing distribution of this rank's chunks [B,c,N]. */
  readonly scores: Tensor;
  readonly routing: Tensor;
  /** Where attention fell, constants. */
  readonly mass: AttentionMass;
  readonly chunks: Chunks;
}

/** What one forward did. Its tensors are yours: dispose it. */
export interface Meta extends Disposable {
  /** Row i: how chunk i's routing was distributed over all chunks, before any were chosen [B,N,N]. No history. */
  readonly routingWeights: Tensor;
  /** Attention between summaries, mean of the meta heads [B,N,N]. */
  readonly chunkAttention: Tensor;
  /** How the attention of this rank's chunks was spread over what they looked at, mean of heads and rows [B,c,N]. */
  readonly attentionMass: Tensor;
  /** Mean of the gate over the features, 0 only the own chunk, 1 only the combination [B,S]; null without a gate. */
  readonly gateValues: Tensor | null;
  /** Which chunks each chunk looked at beside itself, best first: chosen[b][i], of all ranks. */
  readonly chosen: Chosen;
  /** Chunks that the router was to choose at this step, warm-up included. */
  readonly topK: number;
  /** Null unless asked for. */
  readonly certificate: Certificate | null;
  readonly bytesMoved: BytesMoved;
  /** The axes that B stands for: `routingWeights` is [...batchShape,N,N], and `chosen` counts b in row-major order. */
  readonly batchShape: Shape;
  /** What `loadBalanceLoss`, `entropyLoss` and `massLoss` are made of. */
  readonly router: RouterRows;
}

/** A result, and what was done for it; disposing it disposes both. */
export interface MetaResult extends Disposable {
  /** The input's shape. */
  readonly out: Tensor;
  readonly meta: Meta;
}

/** A result that disposes what it holds. */
export function resultOf(out: Tensor, parts: Omit<Meta, typeof Symbol.dispose>): MetaResult {
  const meta: Meta = { ...parts, [Symbol.dispose]: () => disposeMeta(parts) };
  return {
    out,
    meta,
    [Symbol.dispose]() {
      out.dispose();
      meta[Symbol.dispose]();
    },
  };
}

/** Disposes whatever of these is there. */
function disposeMeta(meta: Omit<Meta, typeof Symbol.dispose>): void {
  const { routingWeights, chunkAttention, attentionMass, gateValues, certificate, router } = meta;
  const tensors = [routingWeights, chunkAttention, attentionMass, gateValues, certificate?.missedMass];
  for (const tensor of [...tensors, router.scores, router.routing, router.mass.mean, router.mass.peak])
    tensor?.dispose();
}

/**
 * Makes what was attended the result of a differentiable operation on q, k and v and the router's numbers [B,c,N]: the chunks'
 * weights if soft, the logarithms of the routing distribution if exact. Takes `attending`.
 * Returns [B,S,parts·H·D] in the dtype of q.
 */
function routed(attending: Attending, { q, k, v }: Qkv, router: Tensor): Tensor {
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

/** The projections around the attention. */
export interface Projections extends QkvProjection {
  readonly outProjection: Linear;
  readonly gateProjection: Linear | null;
}

/** What was attended, and what it was made from. */
interface Attended {
  /** Taken. */
  readonly attending: Attending;
  readonly x: Tensor;
  readonly qkv: Projected;
  /** What the attention takes of the router, [B,c,N]. */
  readonly router: Tensor;
  readonly chosen: Chosen;
}

/** The result [B,S,E], and the mean of the gate over the features [B,S] if there is one. */
interface Output {
  readonly out: Tensor;
  readonly gateValues: Tensor | null;
}

/** From what was attended to the result; with `useCheckpoint` the tape keeps x and the choice, and all else is done again. */
export function outputOf(projections: Projections, attended: Attended): Output {
  const { attending, x, qkv, router, chosen } = attended;
  if (!projections.settings.useCheckpoint) return finish(projections, attending, { qkv, router });
  const { plan } = attending;
  let done: Output | undefined;
  const body = (x: Tensor, router: Tensor): Tensor => {
    if (!done) return (done = finish(projections, attending, { qkv, router })).out;
    using again = project(x, projections);
    const repeated = new Attending(plan, again);
    repeated.look(chosen);
    const { out, gateValues } = finish(projections, repeated, { qkv: again, router });
    gateValues?.dispose();
    return out;
  };
  const out = checkpoint(body, x, router);
  return { out, gateValues: done!.gateValues };
}

/** W = H·D features: packed [B,S,W] without a gate, [B,S,2·W] with one → [B,S,E]. */
function finish(
  { gateProjection, outProjection }: Projections,
  attending: Attending,
  { qkv, router }: { qkv: Qkv; router: Tensor },
): Output {
  using packed = routed(attending, qkv, router);
  if (!gateProjection) return { out: outProjection.forward(packed), gateValues: null };
  const width = packed.shape[2]! / 2;
  return scope(() => {
    const gate = gateProjection.forward(packed).sigmoid();
    const own = packed.slice(2, 0, width);
    const combined = packed.slice(2, width, 2 * width);
    const mixed = own.add(gate.mul(combined.sub(own)));
    // The gate's values leave a checkpoint's body, too, which returns the output alone.
    return { out: outProjection.forward(mixed), gateValues: keep(noGrad(() => gate.mean(-1))) };
  });
}
