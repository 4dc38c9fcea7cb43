import type { Slice } from "../mask/slice.ts";
import type { Coordinate } from "../mesh.ts";
import type { Layout } from "./layout.ts";

/** Where queries and keys lie, and which see which: a call, as every rank knows it. */
export interface PlacedCall {
  readonly at: Coordinate;
  readonly queries: Layout;
  readonly keys: Layout;
  readonly mask: readonly Slice[];
}

/** More than one rank asks for; ranks of one process share, and must not fill memory. */
const MOST = 4096;

/**
 * What a backend works out from layouts and a mask, kept for as long as it is asked about the same ones: once for a forward
 * and its backward, for all steps from one place, and for all ranks of one process.
 *
 * @example
 * ```ts
 * import { LayoutCache, layoutOf } from "@mosaic/core";
 * const tokens = layoutOf({ mesh: { node: 2, gpu: 4 }, axes: ["node", "gpu"], length: 80 });
 * const call = { at: { node: 0, gpu: 1 }, queries: tokens, keys: tokens, mask: [] };
 * const kept = new LayoutCache<number>(["gpu"]);
 * let made = 0;
 * kept.of(call, { node: 1, gpu: 3 }, () => ++made); // => 1
 * kept.of(call, { node: 1, gpu: 2 }, () => ++made); // => 1
 * kept.of(call, { node: 0, gpu: 3 }, () => ++made); // => 2
 * ```
 */
export class LayoutCache<T> {
  readonly #axes: readonly string[];
  #call: Pick<PlacedCall, "queries" | "keys" | "mask"> | undefined;
  readonly #known = new Map<string, T>();

  /** `axes`: those along which all places are one, for what is kept is about all of them. */
  constructor(axes: readonly string[]) {
    this.#axes = axes;
  }

  /** What `make` gives for queries at `call.at` and keys from `from`, or gave for the like. */
  of(call: PlacedCall, from: Coordinate, make: () => T): T {
    const { at, queries, keys, mask } = call;
    const last = this.#call;
    const same = last?.queries === queries && last.keys === keys && last.mask === mask;
    if (!same || this.#known.size >= MOST) this.#known.clear();
    if (!same) this.#call = { queries, keys, mask };
    const place = `${this.#place(queries, at)};${this.#place(keys, from)}`;
    let known = this.#known.get(place);
    if (known === undefined) this.#known.set(place, (known = make()));
    return known;
  }

  #place({ axes }: Layout, at: Coordinate): string {
    let place = "";
    for (const axis of axes) place += `,${this.#axes.includes(axis) ? axis in at : at[axis]}`;
    return place;
  }
}
