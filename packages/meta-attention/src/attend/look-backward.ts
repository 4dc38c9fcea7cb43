import type { KvBlock, SavedRows, Tensor } from "@mosaic/core";
import { reduceInto } from "../reduce.ts";
import { Holder } from "../holder.ts";
import type { Attending, Looked } from "./attending.ts";
import type { Gradients } from "./gradients.ts";
import { massOf } from "./mass.ts";
import { tileOf } from "./plan.ts";
import { pairOf, rowsOf, zerosLike } from "./views.ts";

/** A look, the router's numbers, and where the gradients of its keys (k) and values (v) are added. */
export interface LookBackward {
  readonly look: Looked;
  readonly router: Tensor;
  readonly sums: KvBlock;
}

/** Adds what a look at a chosen chunk contributes to dq, to the gradients of its keys, and to the router's. */
export function lookBackward(attending: Attending, given: LookBackward, grads: Gradients): void {
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
