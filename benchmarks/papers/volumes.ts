import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { type AttentionBackend, type Coordinate, masks, zigzag } from "@mosaic/core";
import { type AttentionRecord, count, countLinks, type TrafficTotals, linkClasses, record } from "@mosaic/planner";

/** Volume sent in one attention call, mean over ranks. */
interface SentVolume {
  /** In chunks of queries, the papers' unit: B·H·(n/p)·D elements of any size in bytes. */
  readonly chunks: number;
  readonly bytes: number;
}

export interface Volumes {
  readonly forward: SentVolume;
  readonly backward: SentVolume;
  readonly both: SentVolume;
  /** The part of `both` that is sent to ranks of other nodes. */
  readonly betweenNodes: SentVolume;
}

/** Counts the volumes of a record, in which each `ranksPerNode` consecutive ranks are a node. */
export function countVolumes(record: AttentionRecord, ranksPerNode: number): Volumes {
  const { chunk } = count(record);
  const ranks = countLinks(record, { ranksPerNode });
  const computeMeanVolume = (flows: readonly TrafficTotals[]): SentVolume => ({
    chunks: flows.reduce((sum, { elements }) => sum + elements, 0) / ranks.length / chunk,
    bytes: flows.reduce((sum, { bytes }) => sum + bytes, 0) / ranks.length,
  });
  const forward = computeMeanVolume(ranks.flatMap((rank) => linkClasses.map((kind) => rank.forward[kind].sent)));
  const backward = computeMeanVolume(ranks.flatMap((rank) => linkClasses.map((kind) => rank.backward[kind].sent)));
  return {
    forward,
    backward,
    both: { chunks: forward.chunks + backward.chunks, bytes: forward.bytes + backward.bytes },
    betweenNodes: computeMeanVolume(
      ranks.flatMap((rank) => [rank.forward["inter-node"].sent, rank.backward["inter-node"].sent]),
    ),
  };
}

/** Returns the reduction relative to `reference`, as a share. */
export function computeSaving(value: number, reference: number): number {
  return 1 - value / reference;
}

/** Chunks sent in each pass. */
export interface ChunksPerPass {
  readonly forward: number;
  readonly backward: number;
}

/**
 * Formulas of the papers' analysis. All elements have the same size, softmax statistics are omitted, and g query heads
 * share a KV head.
 */
export const formulas = {
  /** In our ring, gradients reach their owner after p − 1 hops. The papers' ring takes p. */
  ring: (p: number, g: number, hops: number = p - 1): ChunksPerPass => ({
    forward: (2 / g) * (p - 1),
    backward: (2 / g) * (p - 1) + (2 / g) * hops,
  }),
  /**
   * A tile of a chunks of queries and b chunks of keys. Attention2D also transposes the grid, for which `numTransposes`
   * is 1.
   */
  tile: ([a, b]: readonly [number, number], g: number, numTransposes: 0 | 1 = 0): ChunksPerPass => ({
    forward: 2 * (a - 1) + (2 / g) * (b - 1) + (2 / g) * numTransposes,
    backward: 3 * (a - 1) + (4 / g) * (b - 1) + (2 / g) * numTransposes,
  }),
} as const;

/** A backend and the mesh of ranks that it runs on. */
export interface MeshStrategy {
  readonly name: string;
  readonly mesh: Coordinate;
  readonly backend: AttentionBackend;
}

export function ringStrategy(ranks: number): MeshStrategy {
  return { name: "ring", mesh: { sp: ranks }, backend: ring() };
}

/**
 * Returns the strategy of a tile, named as in the papers: `a` chunks of queries × `b` of keys, on a·b ranks. The `a`
 * ranks of a row are consecutive.
 */
export function tileStrategy(
  [a, b]: readonly [number, number],
  schedule: "overlapped" | "fused" = "overlapped",
): MeshStrategy {
  return { name: `mesh2d ${a}×${b} ${schedule}`, mesh: { sp: a * b }, backend: mesh2d({ shape: [b, a], schedule }) };
}

/** Sizes of an attention problem in bfloat16, with queries and keys of `tokens` positions. */
export interface Problem {
  readonly tokens: number;
  readonly numHeads: number;
  /** Default: `numHeads`. */
  readonly numKvHeads?: number;
  readonly headDim: number;
}

/**
 * Records forward and backward with a causal mask and zigzag placement, by the backend's own code on symbolic devices.
 */
export function recordProblem({ backend, mesh }: MeshStrategy, problem: Problem): AttentionRecord {
  return record({ ...problem, backend, mesh, mask: masks.causal(), placement: zigzag() });
}
