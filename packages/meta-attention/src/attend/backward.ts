import type { KvBlock, SavedRows, Tensor } from "@mosaic/core";
import { GradientExchange } from "../exchange/fetch.ts";
import { recordBackward } from "../record-call.ts";
import {
  castTo,
  chunkRows,
  headsView,
  pairView,
  reduceInto,
  ResourceStack,
  zeroHeads,
  zerosLike,
} from "../tensor-views.ts";
import { softmaxShare } from "../log-softmax.ts";
import { type AttendedChunk, chunkMass, type RoutedAttention, createTile } from "./routed-attention.ts";

/**
 * Computes the gradients of q, k and v, summed in float32 and rounded once, and those of the router's weights. Chosen
 * chunks are first, so that their gradients are sent to the owners while the own chunks are computed.
 */
export function routedBackward(attention: RoutedAttention, router: Tensor, dOutput: Tensor): Tensor[] {
  const { config, q, k, v, combinedState, fetches, attendedChunks } = attention;
  config.ctx.assertOpen(`${config.label} backward`);
  recordBackward(config, attention.chosenByCall);
  const { device } = q;
  using resources = new ResourceStack();
  const use = <T extends Disposable>(resource: T): T => resources.use(resource);
  const dPacked = use(dOutput.contiguous());
  const gradientHeads = (partIndex: number): Tensor => use(headsView(dPacked, partIndex, config));
  const dRouter = zerosLike(router);
  const delta = use(device.empty(combinedState.lse.shape, "float32"));
  const dCombined = gradientHeads(config.gate ? 1 : 0);
  device.kernels.rowDot(delta, dCombined, combinedState.out);
  const [dq, dk, dv] = [zeroHeads(q), zeroHeads(k), zeroHeads(v)];
  const grads = { dCombined, dOwn: config.gate ? gradientHeads(0) : null, delta, dq, dk, dv, dRouter };
  const exchanges = new Map(
    fetches.map((fetch) => [fetch, use(new GradientExchange(config, fetch.transfers, { k: dk, v: dv }))]),
  );
  for (const chunkRead of attendedChunks) {
    using sums = exchanges.get(chunkRead.fetch)!.gradientSums(chunkRead);
    chunkBackward(attention, { chunkRead, router, sums }, grads);
  }
  for (const exchange of exchanges.values()) exchange.post();
  attendOwnBackward(attention, grads);
  for (const exchange of exchanges.values()) exchange.accumulate();
  return [...[dq, dk, dv].map((sum) => castTo(sum, q.dtype)), dRouter];
}

/**
 * Computes the backward of each own chunk's attention to itself: with its share of the whole softmax if exact, and by
 * itself for the gate.
 */
function attendOwnBackward(attention: RoutedAttention, grads: BackwardOperands): void {
  using resources = new ResourceStack();
  const { dOut, lse, delta } = computeOwnGradients(attention, grads, resources);
  const { config, q, k, v } = attention;
  for (const chunk of config.chunks.own) {
    using inner = new ResourceStack();
    const rows = (x: Tensor): Tensor => inner.use(chunkRows(x, chunk));
    q.device.kernels.attendBackward(
      { dq: rows(grads.dq), dk: rows(grads.dk), dv: rows(grads.dv) },
      rows(q),
      { dOut: rows(dOut), lse: rows(lse), delta: rows(delta) },
      { k: rows(k), v: rows(v) },
      createTile(config, chunk, chunk),
    );
  }
}

interface OwnGradients {
  readonly dOut: Tensor;
  readonly lse: Tensor;
  readonly delta: Tensor;
}

/** Returns the inputs of the kernel for the keys of own chunks. */
function computeOwnGradients(
  attention: RoutedAttention,
  grads: BackwardOperands,
  resources: ResourceStack,
): OwnGradients {
  const { config, ownState, combinedState } = attention;
  const { dCombined, dOwn, delta } = grads;
  const { device } = dCombined;
  const { kernels } = device;
  // Without a gate, these keys are a part of all keys, so the global lse and delta apply.
  if (!dOwn) return { dOut: dCombined, lse: combinedState.lse, delta };
  const dOut = resources.use(device.empty(dOwn.shape, "float32"));
  const sums = resources.use(device.empty(delta.shape, "float32"));
  if (config.combine === "exact") {
    // o_i feeds the gate and, with its share a of the softmax, the combined output:
    // dOut = dOwn + a·dC, and rowsum(dOut·o_i) − dlse = rowsum(dOwn·o_i) + a·delta.
    const ownShare = resources.use(softmaxShare(ownState.lse, combinedState.lse));
    const shareColumn = resources.use(ownShare.reshape([...ownShare.shape, 1]));
    const weightedDelta = resources.use(device.empty(delta.shape, "float32"));
    kernels.binary("mul", dOut, dCombined, shareColumn);
    kernels.binary("add", dOut, dOut, dOwn);
    kernels.rowDot(sums, dOwn, ownState.out);
    kernels.binary("mul", weightedDelta, ownShare, delta);
    kernels.binary("add", sums, sums, weightedDelta);
    return { dOut, lse: ownState.lse, delta: sums };
  }
  kernels.copy(dOut, dOwn);
  addUnroutedGradients(dOut, dCombined, attention);
  kernels.rowDot(sums, dOut, ownState.out);
  return { dOut, lse: ownState.lse, delta: sums };
}

/**
 * Adds dCombined to dOut for rows that attended to no other chunk, where the combined output is that over the own
 * chunk.
 */
function addUnroutedGradients(dOut: Tensor, dCombined: Tensor, attention: RoutedAttention): void {
  for (const [query, chunk] of attention.config.chunks.own.entries()) {
    for (const [b0, b1] of attention.batchRuns(false, query)) {
      using target = chunkRows(dOut, chunk, b0, b1);
      using addend = chunkRows(dCombined, chunk, b0, b1);
      dOut.device.kernels.binary("add", target, target, addend);
    }
  }
}

/**
 * A chunk that was read, the router's weights, and the sums to which the gradients of its keys (k) and values (v) are
 * added.
 */
interface ChunkBackwardArgs {
  readonly chunkRead: AttendedChunk;
  readonly router: Tensor;
  readonly sums: KvBlock;
}

/**
 * Adds the contributions of a read of a chosen chunk to dq, to the gradients of its keys and values, and to the
 * router's.
 */
function chunkBackward(attention: RoutedAttention, chunkArgs: ChunkBackwardArgs, grads: BackwardOperands): void {
  using resources = new ResourceStack();
  const rows: RowSelector = (x) =>
    resources.use(
      chunkRows(
        x,
        attention.config.chunks.own[chunkArgs.chunkRead.query]!,
        chunkArgs.chunkRead.b0,
        chunkArgs.chunkRead.b1,
      ),
    );
  if (attention.config.combine === "exact") exactBackward(attention, chunkArgs, { grads, rows });
  else softBackward(attention, chunkArgs, { grads, rows });
}

/** Selects the rows of the read's queries. */
type RowSelector = (x: Tensor) => Tensor;

interface BackwardContext {
  readonly grads: BackwardOperands;
  readonly rows: RowSelector;
}

/** The chunk's keys are a part of one softmax. The bias on their logits has the derivative Σ dv·v − Σ mass·delta. */
function exactBackward(
  attention: RoutedAttention,
  chunkArgs: ChunkBackwardArgs,
  { grads, rows }: BackwardContext,
): void {
  const { chunkRead, sums } = chunkArgs;
  const { kernels } = sums.k.device;
  using keys = chunkRead.fetch.kv(chunkRead);
  using dv = zerosLike(keys.v);
  const delta = rows(grads.delta);
  const saved = { dOut: rows(grads.dCombined), lse: rows(attention.combinedState.lse), delta };
  keysBackward(attention, chunkRead, { saved, rows, grads, keys, kvGradients: { k: sums.k, v: dv } });
  using routerGradient = routerElement(grads.dRouter, chunkRead);
  using rowDots = keys.v.device.empty(keys.v.shape.slice(0, 3), "float32");
  kernels.rowDot(rowDots, dv, keys.v);
  reduceInto("sum", routerGradient, rowDots);
  using mass = chunkMass(attention, chunkRead);
  kernels.binary("mul", mass, mass, delta);
  using massDeltaSum = mass.device.empty(routerGradient.shape, "float32");
  reduceInto("sum", massDeltaSum, mass);
  kernels.binary("sub", routerGradient, routerGradient, massDeltaSum);
  kernels.binary("add", sums.v, sums.v, dv);
}

/** The chunk has a separate softmax, and a weight. */
function softBackward(
  attention: RoutedAttention,
  chunkArgs: ChunkBackwardArgs,
  { grads, rows }: BackwardContext,
): void {
  const { chunkRead, router, sums } = chunkArgs;
  const { out, lse } = chunkRead.state!;
  const { kernels } = out.device;
  const dCombined = rows(grads.dCombined);
  using delta = lse.device.empty(lse.shape, "float32");
  kernels.rowDot(delta, dCombined, out);
  using routerGradient = routerElement(grads.dRouter, chunkRead);
  reduceInto("sum", routerGradient, delta);
  using weight = pairView(router, { ...chunkRead, i: chunkRead.query, j: chunkRead.chunk.index }, 4);
  using routerWeight = pairView(router, { ...chunkRead, i: chunkRead.query, j: chunkRead.chunk.index }, 3);
  using dOut = out.device.empty(out.shape, "float32");
  kernels.binary("mul", dOut, dCombined, weight);
  kernels.binary("mul", delta, delta, routerWeight);
  using keys = chunkRead.fetch.kv(chunkRead);
  keysBackward(attention, chunkRead, { saved: { dOut, lse, delta }, rows, grads, keys, kvGradients: sums });
}

function routerElement(dRouter: Tensor, read: AttendedChunk): Tensor {
  return pairView(dRouter, { ...read, i: read.query, j: read.chunk.index }, 3);
}

interface KeysBackwardArgs extends BackwardContext {
  readonly saved: SavedRows;
  readonly keys: KvBlock;
  readonly kvGradients: KvBlock;
}

function keysBackward(
  { config, q }: RoutedAttention,
  read: AttendedChunk,
  { saved, rows, grads, keys, kvGradients: targetGradients }: KeysBackwardArgs,
): void {
  const tile = createTile(config, config.chunks.own[read.query]!, read.chunk);
  const qkvGradients = { dq: rows(grads.dq), dk: targetGradients.k, dv: targetGradients.v };
  q.device.kernels.attendBackward(qkvGradients, rows(q), saved, keys, tile);
}

/**
 * The gradients of a backward: [B,H,S,D] each, of keys and values [B,Hkv,S,D], and the dot products of rows [B,H,S].
 */
interface BackwardOperands {
  /** The gradients of the combined output and, with a gate, of the output over own chunks only. */
  readonly dCombined: Tensor;
  readonly dOwn: Tensor | null;
  /** rowsum(dCombined · combined). */
  readonly delta: Tensor;
  /** Accumulated gradients, float32. */
  readonly dq: Tensor;
  readonly dk: Tensor;
  readonly dv: Tensor;
  /** [B,c,N]. */
  readonly dRouter: Tensor;
}
