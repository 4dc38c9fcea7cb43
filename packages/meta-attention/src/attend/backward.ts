import type { KvBlock, SavedRows, Tensor } from "@mosaic/core";
import { GradientReturn } from "../exchange/fetch.ts";
import { Holder } from "../holder.ts";
import { shareOf } from "../logarithms.ts";
import { recordBackward } from "../record-call.ts";
import { reduceInto } from "../reduce.ts";
import type { Attending, Looked } from "./attending.ts";
import { massOf } from "./mass.ts";
import { tileOf } from "./plan.ts";
import { headsOf, headsOfZeros, pairOf, rounded, rowsOf, zerosLike } from "./views.ts";

/**
 * Gradients of q, k and v, summed in float32 and rounded once, and of the router's numbers. Chosen chunks first; what they are
 * owed travels home while the own chunk's turn comes.
 */
export function routedBackward(attending: Attending, router: Tensor, dOutput: Tensor): Tensor[] {
  const { plan, q, k, v, combined, fetches, looked } = attending;
  plan.ctx.assertOpen(`${plan.label} backward`);
  recordBackward(plan, attending.looks);
  const { device } = q;
  using holder = new Holder();
  const hold = <T extends Disposable>(thing: T): T => holder.hold(thing);
  const dPacked = hold(dOutput.contiguous());
  const part = (which: number): Tensor => hold(headsOf(dPacked, which, plan));
  const dRouter = zerosLike(router);
  const delta = hold(device.empty(combined.lse.shape, "float32"));
  const dCombined = part(plan.gate ? 1 : 0);
  device.kernels.rowDot(delta, dCombined, combined.out);
  const [dq, dk, dv] = [headsOfZeros(q), headsOfZeros(k), headsOfZeros(v)];
  const grads = { dCombined, dOwn: plan.gate ? part(0) : null, delta, dq, dk, dv, dRouter };
  const returns = new Map(
    fetches.map((fetch) => [fetch, hold(new GradientReturn(plan, fetch.edges, { k: dk, v: dv }))]),
  );
  for (const look of looked) {
    using sums = returns.get(look.fetch)!.sums(look);
    lookBackward(attending, { look, router, sums }, grads);
  }
  for (const home of returns.values()) home.post();
  ownBackward(attending, grads);
  for (const home of returns.values()) home.land();
  return [...[dq, dk, dv].map((sum) => rounded(sum, q.dtype)), dRouter];
}

/** Each own chunk attends to itself: with its share of the whole softmax if exact, and alone where the gate looks. */
function ownBackward(attending: Attending, grads: Gradients): void {
  using holder = new Holder();
  const { dOut, lse, delta } = ownRows(attending, grads, holder);
  const { plan, q, k, v } = attending;
  for (const chunk of plan.chunks.own) {
    using inner = new Holder();
    const rows = (x: Tensor): Tensor => inner.hold(rowsOf(x, chunk));
    q.device.kernels.attendBackward(
      { dq: rows(grads.dq), dk: rows(grads.dk), dv: rows(grads.dv) },
      rows(q),
      { dOut: rows(dOut), lse: rows(lse), delta: rows(delta) },
      { k: rows(k), v: rows(v) },
      tileOf(plan, chunk, chunk),
    );
  }
}

interface OwnRows {
  readonly dOut: Tensor;
  readonly lse: Tensor;
  readonly delta: Tensor;
}

/** What the kernel needs for the keys of own chunks. */
function ownRows(attending: Attending, grads: Gradients, holder: Holder): OwnRows {
  const { plan, own, combined } = attending;
  const { dCombined, dOwn, delta } = grads;
  const { device } = dCombined;
  const { kernels } = device;
  // Without a gate these keys are some among all: the global rule.
  if (!dOwn) return { dOut: dCombined, lse: combined.lse, delta };
  const dOut = holder.hold(device.empty(dOwn.shape, "float32"));
  const sums = holder.hold(device.empty(delta.shape, "float32"));
  if (plan.combine === "exact") {
    // o_i feeds the gate and, with its share a of the softmax, the combined output:
    // dOut = dOwn + a·dC, and rowsum(dOut·o_i) − dlse = rowsum(dOwn·o_i) + a·delta.
    const share = holder.hold(shareOf(own.lse, combined.lse));
    const heads = holder.hold(share.reshape([...share.shape, 1]));
    const shared = holder.hold(device.empty(delta.shape, "float32"));
    kernels.binary("mul", dOut, dCombined, heads);
    kernels.binary("add", dOut, dOut, dOwn);
    kernels.rowDot(sums, dOwn, own.out);
    kernels.binary("mul", shared, share, delta);
    kernels.binary("add", sums, sums, shared);
    return { dOut, lse: own.lse, delta: sums };
  }
  kernels.copy(dOut, dOwn);
  addWhereNothingWasChosen(dOut, dCombined, attending);
  kernels.rowDot(sums, dOut, own.out);
  return { dOut, lse: own.lse, delta: sums };
}

/** There the combined output is the own one. */
function addWhereNothingWasChosen(dOut: Tensor, dCombined: Tensor, attending: Attending): void {
  for (const [query, chunk] of attending.plan.chunks.own.entries()) {
    for (const [b0, b1] of attending.runsThat(false, query)) {
      using sum = rowsOf(dOut, chunk, b0, b1);
      using more = rowsOf(dCombined, chunk, b0, b1);
      dOut.device.kernels.binary("add", sum, sum, more);
    }
  }
}

/** A look, the router's numbers, and where the gradients of its keys (k) and values (v) are added. */
interface LookBackward {
  readonly look: Looked;
  readonly router: Tensor;
  readonly sums: KvBlock;
}

/** Adds what a look at a chosen chunk contributes to dq, to the gradients of its keys, and to the router's. */
function lookBackward(attending: Attending, given: LookBackward, grads: Gradients): void {
  using holder = new Holder();
  const rows: Rows = (x) =>
    holder.hold(rowsOf(x, attending.plan.chunks.own[given.look.query]!, given.look.b0, given.look.b1));
  if (attending.plan.combine === "exact") exactBackward(attending, given, { grads, rows });
  else softBackward(attending, given, { grads, rows });
}

/** The rows of the look's queries. */
type Rows = (x: Tensor) => Tensor;

interface Context {
  readonly grads: Gradients;
  readonly rows: Rows;
}

/** The keys are some among all of one softmax; the bias on their logits has the derivative Σ dv·v − Σ mass·delta. */
function exactBackward(attending: Attending, given: LookBackward, { grads, rows }: Context): void {
  const { look, sums } = given;
  const { kernels } = sums.k.device;
  using keys = look.fetch.keys(look);
  using dv = zerosLike(keys.v);
  const delta = rows(grads.delta);
  const saved = { dOut: rows(grads.dCombined), lse: rows(attending.combined.lse), delta };
  keysBackward(attending, look, { saved, rows, grads, keys, into: { k: sums.k, v: dv } });
  using place = placeOf(grads.dRouter, look);
  using dots = keys.v.device.empty(keys.v.shape.slice(0, 3), "float32");
  kernels.rowDot(dots, dv, keys.v);
  reduceInto("sum", place, dots);
  using mass = massOf(attending, look);
  kernels.binary("mul", mass, mass, delta);
  using lost = mass.device.empty(place.shape, "float32");
  reduceInto("sum", lost, mass);
  kernels.binary("sub", place, place, lost);
  kernels.binary("add", sums.v, sums.v, dv);
}

/** The chunk has a softmax of its own, and a weight. */
function softBackward(attending: Attending, given: LookBackward, { grads, rows }: Context): void {
  const { look, router, sums } = given;
  const { out, lse } = look.state!;
  const { kernels } = out.device;
  const dCombined = rows(grads.dCombined);
  using delta = lse.device.empty(lse.shape, "float32");
  kernels.rowDot(delta, dCombined, out);
  using place = placeOf(grads.dRouter, look);
  reduceInto("sum", place, delta);
  using weight = pairOf(router, { ...look, i: look.query, j: look.chunk.index }, 4);
  using flat = pairOf(router, { ...look, i: look.query, j: look.chunk.index }, 3);
  using dOut = out.device.empty(out.shape, "float32");
  kernels.binary("mul", dOut, dCombined, weight);
  kernels.binary("mul", delta, delta, flat);
  using keys = look.fetch.keys(look);
  keysBackward(attending, look, { saved: { dOut, lse, delta }, rows, grads, keys, into: sums });
}

function placeOf(dRouter: Tensor, look: Looked): Tensor {
  return pairOf(dRouter, { ...look, i: look.query, j: look.chunk.index }, 3);
}

interface KeysBackward extends Context {
  readonly saved: SavedRows;
  readonly keys: KvBlock;
  readonly into: KvBlock;
}

function keysBackward({ plan, q }: Attending, look: Looked, { saved, rows, grads, keys, into }: KeysBackward): void {
  const tile = tileOf(plan, plan.chunks.own[look.query]!, look.chunk);
  const own = { dq: rows(grads.dq), dk: into.k, dv: into.v };
  q.device.kernels.attendBackward(own, rows(q), saved, keys, tile);
}

/** The gradients that a backward works on: [B,H,S,D] each, of keys and values [B,Hkv,S,D], and the rows' dot products [B,H,S]. */
interface Gradients {
  /** Of the combined output, and of that over own chunks alone if there is a gate. */
  readonly dCombined: Tensor;
  readonly dOwn: Tensor | null;
  /** rowsum(dCombined · combined). */
  readonly delta: Tensor;
  /** To add to, float32. */
  readonly dq: Tensor;
  readonly dk: Tensor;
  readonly dv: Tensor;
  /** [B,c,N]. */
  readonly dRouter: Tensor;
}
