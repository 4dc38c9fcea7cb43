import {
  type AttentionBackend,
  LayoutCache,
  type Call,
  type Context,
  type Coordinate,
  checkOptionNames,
  inParts,
  type PlacedKv,
  local,
} from "@mosaic/core";
import { carry } from "./carry.ts";
import { checkGradients, checkKeys, checkMesh, checkNesting } from "./check.ts";
import { type Need, needOf } from "./need.ts";
import { type Circle, rotate } from "./rotate.ts";
import { around, ranksOf } from "./route.ts";

export interface RingOptions {
  /** The mesh axis along which keys rotate; "sp" if absent. */
  readonly axis?: string;
  /**
   * What attends to the keys of each step; the device's own kernel if absent. It may communicate along further axes. Then
   * all ranks along those step together, and its `attendBackward` must add to dk and dv what the queries of all of them
   * contribute to the keys that this rank gave it.
   */
  readonly inner?: AttentionBackend;
}

/**
 * Ring attention: keys and values go from rank to rank along a mesh axis, and every rank folds them, as they come, into
 * the state of its own queries. Each transfer is hidden behind the step before it, what a mask leaves empty is neither
 * computed nor sent, and no rank ever holds more than two foreign chunks of keys.
 *
 * In a full ring of p ranks each sends p − 1 chunks of K and V, and in backward another p − 1 of float32 dK and dV;
 * `ringTraffic` gives the bytes for any mask and placement. With `inner: ring({ axis: "gpu" })` chunks go from node to
 * node while the ranks of each node pass theirs among themselves: hierarchical attention.
 *
 * Throws, before anything is sent, an OptionError if the mesh lacks the axis or the keys are not cut along it, and a
 * ShapeError or DTypeError if the tensors are not what their layouts say.
 *
 * Source: Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023.
 *
 * @example
 * ```ts
 * import { ring } from "@mosaic/backend-ring";
 * ring().axes; // => ["sp"]
 * ring({ axis: "node", inner: ring({ axis: "gpu" }) }).axes; // => ["node", "gpu"]
 * ```
 */
export function ring(options: RingOptions = {}): AttentionBackend {
  checkOptionNames("ring", options, ["axis", "inner"] satisfies (keyof RingOptions)[]);
  const { axis = "sp", inner = local() } = options;
  checkNesting(axis, inner);
  const needs = new LayoutCache<Need>([axis]);
  return {
    name: "ring",
    axes: [axis, ...inner.axes],

    check(ctx) {
      checkMesh(ctx, axis);
      inner.check?.(ctx);
    },

    attend(ctx, call, state, keys) {
      checkKeys(ctx, axis, call, keys);
      const circle = circleOf(ctx, call, keys);
      const places = placesOf(circle, keys.from);
      using parts = inParts(inner, places.filter(isVisited));
      for (const { step, k, v } of rotate(circle, keys)) {
        const from = places[step];
        if (from) parts.attend(ctx, call, state, { k, v, from });
      }
    },

    attendBackward(ctx, call, grads, keys) {
      checkKeys(ctx, axis, call, keys);
      checkGradients(ctx, axis, grads, keys);
      const circle = circleOf(ctx, call, keys);
      const places = placesOf(circle, keys.from);
      using parts = inParts(inner, places.filter(isVisited));
      for (const { step, k, v, dk, dv } of carry(circle, grads, rotate(circle, keys))) {
        const from = places[step];
        if (from) parts.attendBackward(ctx, call, { dq: grads.dq, dk, dv }, { k, v, from });
      }
    },
  };

  function circleOf(ctx: Context, call: Call, keys: PlacedKv): Circle {
    const group = ctx.mesh.group(axis);
    const need = needs.of(call, keys.from, () => needOf({ axis, size: group.size, inner }, call, keys.from));
    return { group, need, label: `ring(${axis})` };
  }

  /** By step: where its keys come from, or nothing if there is nothing to compute on them. */
  function placesOf({ group: { rank, size }, need }: Circle, from: Coordinate): (Coordinate | undefined)[] {
    return ranksOf(size).map((step) => {
      const source = around(rank - step, size);
      return need.visits(rank, source) ? { ...from, [axis]: source } : undefined;
    });
  }
}

function isVisited(place: Coordinate | undefined): place is Coordinate {
  return place !== undefined;
}
