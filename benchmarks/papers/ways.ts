import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { type AttentionBackend, type Coordinate, masks, zigzag } from "@mosaic/core";
import { type AttentionRecord, record } from "@mosaic/planner";

/** A way to attend on some number of ranks. */
export interface Way {
  readonly name: string;
  readonly mesh: Coordinate;
  readonly backend: AttentionBackend;
}

export function ringOf(ranks: number): Way {
  return { name: "ring", mesh: { sp: ranks }, backend: ring() };
}

/** A tile as the papers name it: `a` chunks of queries × `b` of keys, a·b ranks; the `a` ranks of a row are neighbours. */
export function tile([a, b]: readonly [number, number], schedule: "overlapped" | "fused" = "overlapped"): Way {
  return { name: `mesh2d ${a}×${b} ${schedule}`, mesh: { sp: a * b }, backend: mesh2d({ shape: [b, a], schedule }) };
}

/** What is attended to: a causal mask over `tokens`, in bfloat16. */
export interface Problem {
  readonly tokens: number;
  readonly numHeads: number;
  /** As many as heads if absent. */
  readonly numKvHeads?: number;
  readonly headDim: number;
}

/** Balanced by zigzag, forward and backward, by the backend's own code on symbolic devices. */
export function recordOf({ backend, mesh }: Way, problem: Problem): AttentionRecord {
  return record({ ...problem, backend, mesh, mask: masks.causal(), placement: zigzag() });
}
