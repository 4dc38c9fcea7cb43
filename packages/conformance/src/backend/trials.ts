import { type Context, contiguous, type Coordinate, type DType, type Placement, striped, zigzag } from "@mosaic/core";
import { check } from "../check.ts";
import { integer, uniforms } from "../oracle/numbers.ts";
import { maskTrials } from "./masks.ts";
import type { Arrangement } from "../suite-options.ts";
import { extremeValueTransforms, type Trial, type ValueTransform } from "./trial.ts";

/** Options of `backendTrials`. */
export interface TrialOptions {
  readonly placement: Placement;
  readonly dtype: DType;
  /** Seed of the values and of the random masks. */
  readonly seed: number;
  /**
   * Default: lengths that are not divisible by most world sizes, shorter than most worlds, different for queries and
   * keys, or 0, and extreme scores.
   */
  readonly extents?: readonly Extents[];
}

/** Lengths of queries and keys. */
export interface Extents {
  readonly queries: number;
  readonly keys: number;
  /** Names of the constructors of the masks to test. All masks if absent. */
  readonly masks?: readonly string[];
  /** Transform of the queries and keys. If absent, they remain normally distributed. */
  readonly values?: ValueTransform;
}

/**
 * Lengths that are not divisible by most world sizes, shorter than the world, different for queries and keys, or 0, and
 * extreme scores.
 */
const irregularExtents: readonly Extents[] = [
  { queries: 41, keys: 41 },
  { queries: 3, keys: 3, masks: ["full", "causal", "sliceMask"] },
  { queries: 23, keys: 38, masks: ["causal", "slidingWindow", "bidirectionalCausal"] },
  { queries: 38, keys: 23, masks: ["full", "causal", "prefix"] },
  ...extremeValueTransforms.map((values) => ({ queries: 11, keys: 13, masks: ["causal"], values })),
  { queries: 5, keys: 0, masks: ["full"] },
];

/** Numbers of query and KV heads, head size and batch size: even and odd, with and without grouped heads. */
const attentionSizes = [
  { numHeads: 2, numKvHeads: 2, headDim: 16, batch: 1 },
  { numHeads: 4, numKvHeads: 2, headDim: 8, batch: 1 },
  { numHeads: 3, numKvHeads: 1, headDim: 5, batch: 2 },
] as const;

/** Returns trials of every mask on one placement, with and without grouped heads. */
export function backendTrials({ mesh, axes }: Pick<Arrangement, "mesh" | "axes">, options: TrialOptions): Trial[] {
  const { placement, dtype, seed, extents = irregularExtents } = options;
  const cases = extents.flatMap(({ queries, keys, masks, values }) =>
    maskTrials(queries, keys, seed)
      .filter(({ mask }) => !masks || masks.includes(mask.name.replace(/\(.*/, "")))
      .map(({ mask, maskMod }) => ({ queries, keys, mask, maskMod, values })),
  );
  return cases.map(({ queries, keys, mask, maskMod, values }, i) => {
    const size = attentionSizes[i % attentionSizes.length]!;
    const { numHeads, numKvHeads, headDim } = size;
    const heading = `${mask.name} ${queries}×${keys}, ${numHeads}/${numKvHeads} heads of size ${headDim}`;
    return {
      name: `${heading}, ${values ? `${values.name}, ` : ""}${placement.name}, ${dtype}`,
      mesh,
      axes,
      ...size,
      dtype,
      scale: 1 / Math.sqrt(headDim),
      mask: mask.slices(queries, keys),
      maskMod,
      queries: { length: queries, placement },
      keys: { length: keys, placement },
      seed: seed + i,
      ...(values && { values }),
    };
  });
}

/**
 * Returns the number of ranks of a mesh.
 *
 * @example
 * ```ts
 * import { meshSize } from "@mosaic/conformance";
 * meshSize({ node: 2, gpu: 3 }); // => 6
 * ```
 * @throws AssertionError for a mesh without ranks.
 */
export function meshSize(mesh: Coordinate): number {
  const size = Object.values(mesh).reduce((product, length) => product * length, 1);
  check(size > 0, `expected a mesh with at least one rank, received ${JSON.stringify(mesh)}`);
  return size;
}

/**
 * Formats a mesh for the names of cases.
 *
 * @example
 * ```ts
 * import { formatMesh } from "@mosaic/conformance";
 * formatMesh({ node: 2, gpu: 3 }); // => "node 2 × gpu 3"
 * ```
 */
export function formatMesh(mesh: Coordinate): string {
  return Object.entries(mesh)
    .map(([axis, length]) => `${axis} ${length}`)
    .join(" × ");
}

/** Returns the number of sequences: the number of ranks along the axes along which sequences are not sharded. */
export function countSequences(mesh: Coordinate, axes: readonly string[]): number {
  return meshSize(Object.fromEntries(Object.entries(mesh).filter(([axis]) => !axes.includes(axis))));
}

/** Returns the index of the sequence that this rank works on. */
export function sequenceIndex({ mesh }: Context, axes: readonly string[]): number {
  return mesh.axes
    .filter((axis) => !axes.includes(axis))
    .reduce((index, axis) => index * mesh.shape[axis]! + mesh.coordinate[axis]!, 0);
}

/** Returns a placement whose shards grow with their index. If there are many shards, the first are empty. */
function unequalPlacement(): Placement {
  return {
    name: "ragged",
    spans(index, count, length) {
      const spanStart = (i: number) => Math.floor(length * (i / count) ** 2);
      return [{ start: spanStart(index), length: spanStart(index + 1) - spanStart(index), step: 1 }];
    },
  };
}

/** Returns a placement of random blocks of three positions, as a solver might: a shard is many spans, not in order. */
function randomBlockPlacement(): Placement {
  return {
    name: "scattered",
    spans(index, count, length) {
      const nextUniform = uniforms(length);
      const spans = [];
      for (let start = 0; start < length; start += 3) {
        if (integer(nextUniform, count) === index)
          spans.unshift({ start, length: Math.min(3, length - start), step: 1 });
      }
      return spans;
    },
  };
}

/** Returns core's placements, and two that are as irregular as the contract permits. */
export function placements(): Placement[] {
  return [contiguous(), zigzag(), striped(), unequalPlacement(), randomBlockPlacement()];
}
