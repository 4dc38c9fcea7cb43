import type { Slice } from "../mask/slice.ts";
import type { Span } from "../placement/span.ts";

/** What a kernel must know of a block of queries and keys beyond their values. Kernels mask by global position. */
export interface Tile {
  /** Global positions of the rows of q, in order; lengths sum to Sq. */
  readonly q: readonly Span[];
  /** Global positions of the rows of k and v, in order; lengths sum to Sk. */
  readonly k: readonly Span[];
  /** Disjoint slices. */
  readonly mask: readonly Slice[];
  /** Factor on q·k before the softmax. */
  readonly scale: number;
}
