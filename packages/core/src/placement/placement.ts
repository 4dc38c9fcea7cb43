import { expectValue, formatValue, OptionError, ShapeError } from "../errors.ts";
import type { Coordinate } from "../mesh.ts";
import type { Span } from "./span.ts";

/**
 * Division of a sequence into shards: `spans` returns the global positions of shard `index` of `count`, in order. The
 * length need not be divisible by the number of shards, and shards may be empty. A custom placement must satisfy the
 * following contract, which is verified (`resolveShards`) before anything is sent, once for each number of shards and
 * length:
 *
 * - equal arguments yield equal spans on every rank; `spans` is called once for each combination of arguments;
 * - start, length and step are integers: start ≥ 0, length ≥ 0, step ≥ 1;
 * - each position from 0 to length − 1 is in exactly one shard, once, and no shard contains any other position.
 */
export interface Placement {
  readonly name: string;
  spans(index: number, count: number, length: number): readonly Span[];
}

/** Distribution of a sequence over a mesh: the global positions that each mesh coordinate holds. */
export interface Layout {
  /** Length of the whole sequence. */
  readonly length: number;
  /** Mesh axes along which the sequence is sharded, outermost first. */
  readonly axes: readonly string[];
  /**
   * Returns the positions at a coordinate. An axis missing from it means all shards along that axis, concatenated in
   * order.
   */
  spans(at: Coordinate): readonly Span[];
}

/** How one axis of a tensor is sharded: a rank's tensor has the rows of its shard along this axis. */
export interface AxisSharding {
  /** The tensor axis, counted from 0. */
  readonly axis: number;
  readonly layout: Layout;
  /** Lengths of the mesh axes to which the layout applies. */
  readonly mesh: Coordinate;
}

/** How the axes of a tensor are sharded. An axis that is not listed is not known to be sharded. */
export type Sharding = readonly AxisSharding[];

/** Throws an OptionError unless `index`, `count` and `length` are valid. */
// oxlint-disable-next-line max-params -- the arguments that it checks
function checkShard(where: string, index: number, count: number, length: number): void {
  const isValidIndex = Number.isSafeInteger(count) && Number.isSafeInteger(index) && index >= 0 && index < count;
  const isValidLength = Number.isSafeInteger(length) && length >= 0;
  if (isValidIndex && isValidLength) return;
  const expected = "[index, count, length] of integers with 0 ≤ index < count and length ≥ 0";
  expectValue(`${where}: spans`, false, expected, [index, count, length]);
}

/** Returns piece `index` of `count` nearly equal pieces. The first length % count pieces are longer by one. */
function chunkSpan(index: number, count: number, length: number): Span {
  const minLength = Math.floor(length / count);
  const remainder = length % count;
  const start = index * minLength + Math.min(index, remainder);
  return { start, length: minLength + (index < remainder ? 1 : 0), step: 1 };
}

/**
 * Returns the placement with contiguous shards, either nearly equal (the first length % count shards are longer by one)
 * or with the passed lengths.
 *
 * @throws OptionError for lengths that are not integers ≥ 0; ShapeError, when applied, if their number or sum does not
 * match.
 *
 * @example
 * ```ts
 * import { contiguous } from "@mosaic/core";
 * contiguous().spans(1, 3, 10); // => [{ start: 4, length: 3, step: 1 }]
 * ```
 */
export function contiguous(lengths?: readonly number[]): Placement {
  expectValue("contiguous", lengths === undefined || Array.isArray(lengths), "an array of lengths", lengths);
  return lengths ? contiguousOfLengths([...lengths]) : contiguousPlacement;
}

// Singletons, because verification results are cached by identity.
const contiguousPlacement: Placement = Object.freeze<Placement>({
  name: "contiguous",
  spans(index, count, length) {
    checkShard("contiguous", index, count, length);
    return [chunkSpan(index, count, length)];
  },
});

const zigzagPlacement: Placement = Object.freeze<Placement>({
  name: "zigzag",
  spans(index, count, length) {
    checkShard("zigzag", index, count, length);
    return [chunkSpan(index, 2 * count, length), chunkSpan(2 * count - 1 - index, 2 * count, length)];
  },
});

const stripedPlacement: Placement = Object.freeze<Placement>({
  name: "striped",
  spans(index, count, length) {
    checkShard("striped", index, count, length);
    return [{ start: index, length: Math.max(0, Math.ceil((length - index) / count)), step: count }];
  },
});

function contiguousOfLengths(lengths: readonly number[]): Placement {
  if (!lengths.every((length) => Number.isSafeInteger(length) && length >= 0)) {
    throw new OptionError({
      where: "contiguous",
      expected: "an array of integers ≥ 0",
      received: formatValue(lengths),
    });
  }
  return {
    name: `contiguous([${lengths.join(",")}])`,
    spans(index, count, length) {
      checkShard("contiguous", index, count, length);
      const total = lengths.reduce((sum, each) => sum + each, 0);
      if (lengths.length !== count || total !== length) {
        throw new ShapeError({
          where: "contiguous",
          expected: `${count} lengths that sum to ${length}`,
          received: `[${lengths.join(",")}] with sum ${total}`,
        });
      }
      const start = lengths.slice(0, index).reduce((sum, each) => sum + each, 0);
      return [{ start, length: lengths[index]!, step: 1 }];
    },
  };
}

/**
 * Returns the placement in which shard r holds pieces r and 2 · count − 1 − r of 2 · count equal pieces. With a causal
 * mask, every shard has the same amount of work. Used by zhuzilin/ring-flash-attention and Llama 3.
 *
 * @example
 * ```ts
 * import { zigzag } from "@mosaic/core";
 * zigzag().spans(0, 2, 8); // => [{ start: 0, length: 2, step: 1 }, { start: 6, length: 2, step: 1 }]
 * ```
 */
export function zigzag(): Placement {
  return zigzagPlacement;
}

/**
 * Returns the placement in which shard r holds positions r, r + count, …: as balanced as zigzag, at every scale.
 * Brandon et al. 2023, "Striped Attention".
 *
 * @example
 * ```ts
 * import { striped } from "@mosaic/core";
 * striped().spans(1, 2, 7); // => [{ start: 1, length: 3, step: 2 }]
 * ```
 */
export function striped(): Placement {
  return stripedPlacement;
}

/** The name of a placement in options. */
export type PlacementName = "contiguous" | "zigzag" | "striped";

const placementsByName: Readonly<Record<PlacementName, () => Placement>> = {
  contiguous: () => contiguous(),
  zigzag,
  striped,
};

/**
 * Returns the placement itself, or the placement of this name.
 *
 * @example
 * ```ts
 * import { resolvePlacement } from "@mosaic/core";
 * resolvePlacement("striped").spans(1, 2, 6); // => [{ start: 1, length: 3, step: 2 }]
 * ```
 * @throws OptionError that lists the names if it is unknown.
 */
export function resolvePlacement(nameOrValue: PlacementName | Placement): Placement {
  if (typeof (nameOrValue as Partial<Placement> | null)?.spans === "function") return nameOrValue as Placement;
  if (typeof nameOrValue === "string" && Object.hasOwn(placementsByName, nameOrValue))
    return placementsByName[nameOrValue]();
  throw new OptionError({
    where: "placement",
    expected: `${Object.keys(placementsByName).join(", ")} or a Placement`,
    received: formatValue(nameOrValue),
  });
}
