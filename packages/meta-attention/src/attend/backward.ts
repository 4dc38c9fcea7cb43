import type { Tensor } from "@mosaic/core";
import { GradientReturn } from "../exchange/gradient-return.ts";
import { Holder } from "../holder.ts";
import type { Attending } from "./attending.ts";
import type { Gradients } from "./gradients.ts";
import { lookBackward } from "./look-backward.ts";
import { shareOf } from "../logarithms.ts";
import { tileOf } from "./plan.ts";
import { headsOf, headsOfZeros, rounded, rowsOf, zerosLike } from "./views.ts";

/**
 * Gradients of q, k and v, summed in float32 and rounded once, and of the router's numbers. Chosen chunks first; what they are
 * owed travels home while the own chunk's turn comes.
 */
export function routedBackward(attending: Attending, router: Tensor, dOutput: Tensor): Tensor[] {
  const { plan, q, k, v, combined, fetches, looked } = attending;
  plan.ctx.assertOpen(`${plan.label} backward`);
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
