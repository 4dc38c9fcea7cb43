import { checkpoint, keep, type Linear, noGrad, scope, type Tensor } from "@mosaic/core";
import { Attending, type Qkv } from "./attend/attending.ts";
import { routed } from "./attend/routed.ts";
import { type Projected, project, type QkvProjection } from "./projection.ts";
import type { Chosen } from "./route/choose.ts";

/** The projections around the attention. */
export interface Projections extends QkvProjection {
  readonly outProjection: Linear;
  readonly gateProjection: Linear | null;
}

/** What was attended, and what it was made from. */
export interface Attended {
  /** Taken. */
  readonly attending: Attending;
  readonly x: Tensor;
  readonly qkv: Projected;
  /** What the attention takes of the router, [B,c,N]. */
  readonly router: Tensor;
  readonly chosen: Chosen;
}

/** The result [B,S,E], and the mean of the gate over the features [B,S] if there is one. */
export interface Output {
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
