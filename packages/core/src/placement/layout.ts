import type { Coordinate } from "../mesh.ts";
import type { Span } from "./span.ts";

/** Where the rows of one sequence lie: which global positions each coordinate of the mesh holds. */
export interface Layout {
  /** Length of the whole sequence. */
  readonly length: number;
  /** Mesh axes over which the sequence is cut, outermost first. */
  readonly axes: readonly string[];
  /** Positions at a coordinate; an axis missing from it means all shards along that axis, concatenated in order. */
  spans(at: Coordinate): readonly Span[];
}
