import {
  defineOptions,
  formatValue,
  type Mask,
  OptionError,
  option,
  type OptionsOf,
  type Placement,
  type ResolvedOptionsOf,
  resolveSlices,
  ShapeError,
  type Span,
} from "@mosaic/core";
import type { DispatchCandidate } from "./assignment.ts";
import { computeBounds, type DispatchBounds } from "./bounds.ts";
import { CostModel, dispatchCostOptions } from "./cost.ts";
import { createDispatchProblem, type DispatchProblem, type WeightedMask } from "./problem.ts";
import { solve, createStartCandidates } from "./solve.ts";

const sharedOptions = {
  /** Who sees what; or one mask for each sample of the batch, whose pairs and rows are summed. */
  mask: option.either(option.mask(), option.array(option.mask())),
  /** How many ranks share the sequence. */
  ranks: option.integer({ min: 1, max: 65_536 }),
  /** Rows of a chunk; the last one may be shorter. Default: 512, or less, so that a rank has 8 chunks. */
  chunkSize: option.integer({ min: 1, optional: true }),
  /** What placements are compared by, the same on every rank: a DispatchCost. Default: an H100 with a port of 400 Gbit/s. */
  cost: option.nested(dispatchCostOptions, { optional: true, expected: "a DispatchCost" }),
} as const;

export const dispatchOptions = defineOptions("dispatch", {
  /** Who sees what; or one mask for each sample of the batch, whose pairs and rows are summed. */
  mask: sharedOptions.mask,
  /** Length of the sequence. */
  length: option.integer({ min: 0 }),
  /** How many ranks share the sequence. */
  ranks: sharedOptions.ranks,
  /** Rows of a chunk; the last one may be shorter. Default: 512, or less, so that a rank has 8 chunks. */
  chunkSize: sharedOptions.chunkSize,
  /** What placements are compared by, the same on every rank: a DispatchCost. Default: an H100 with a port of 400 Gbit/s. */
  cost: sharedOptions.cost,
});
/** What `dispatch` takes. */
export type DispatchOptions = OptionsOf<typeof dispatchOptions>;

export const crossDispatchOptions = defineOptions("crossDispatch", {
  /** Which queries see which keys; or one mask for each sample of the batch, whose pairs and rows are summed. */
  mask: sharedOptions.mask,
  /** Length of the queries' sequence. */
  queries: option.integer({ min: 0 }),
  /** Length of the keys' sequence. */
  keys: option.integer({ min: 0 }),
  /** How many ranks share the sequences. */
  ranks: sharedOptions.ranks,
  /** Rows of a chunk; the last one may be shorter. Default: 512, or less, so that a rank has 8 chunks of queries. */
  chunkSize: sharedOptions.chunkSize,
  /** What placements are compared by, the same on every rank: a DispatchCost. Default: an H100 with a port of 400 Gbit/s. */
  cost: sharedOptions.cost,
});
/** What `crossDispatch` takes. */
export type CrossDispatchOptions = OptionsOf<typeof crossDispatchOptions>;

const DEFAULT_CHUNK_SIZE = 512;
const MIN_CHUNKS = 8;

/**
 * A placement of a sequence that suits its mask: of chunks of rows, each rank gets as many as the others, up to one, so that the
 * predicted time of the slowest rank (the greatest of its compute, receive and send), and a tenth of the mean receive time, are
 * least. Found by swapping chunks, from the best of several starts: sequential, zigzag, zigzag of each document,
 * MagiAttention's greedy, affinity, necklace splitting, groups of ranks by document. Never worse than any of these.
 *
 * A pure function of its options: every rank finds the same, and nothing is sent for it. What was found for a mask is kept as
 * long as the mask. A sequence of 1 M rows and 1 000 documents is placed on 256 ranks in less than a second.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * import { dispatch } from "@mosaic/backend-flex";
 * const mask = masks.documents([6, 2, 4, 4], "causal");
 * const placement = dispatch({ mask, length: 16, ranks: 2, chunkSize: 2 });
 * // The longest document is on one rank, with the shortest; no row travels.
 * placement.spans(0, 2, 16).map(({ start, length }) => [start, length]); // => [[0, 8]]
 * ```
 * @throws OptionError for options that are none; what the mask throws for the length. `spans` throws a ShapeError for another
 *   number of shards, or another length.
 */
export function dispatch(options: DispatchOptions): Placement {
  const settings = dispatchOptions.parse(options);
  return solvePlacements(toSelfAttentionSettings(settings)).queries;
}

/**
 * Placements of queries and keys that are different sequences, as `dispatch` finds them: the keys lie where they are seen.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * import { crossDispatch } from "@mosaic/backend-flex";
 * const { queries, keys } = crossDispatch({ mask: masks.causal(), queries: 8, keys: 16, ranks: 2, chunkSize: 2 });
 * [queries, keys].map((each) => each.spans(0, 2, each === queries ? 8 : 16).reduce((sum, { length }) => sum + length, 0)); // => [4, 8]
 * ```
 * @throws As `dispatch`.
 */
export function crossDispatch(options: CrossDispatchOptions): {
  readonly queries: Placement;
  readonly keys: Placement;
} {
  return solvePlacements({ ...crossDispatchOptions.parse(options), isSelfAttention: false });
}

/** Lower bounds of what `dispatch` minimizes. They hold for every placement in chunks; derivations are in `src/dispatch/bounds.ts`. */
export function dispatchBounds(options: DispatchOptions): DispatchBounds {
  return computeBounds(createProblem(toSelfAttentionSettings(dispatchOptions.parse(options))));
}

/** The starts of `dispatch`, each as a placement: what to compare with. */
export function dispatchCandidates(
  options: DispatchOptions,
): readonly (DispatchCandidate & { placement: Placement })[] {
  const problem = createProblem(toSelfAttentionSettings(dispatchOptions.parse(options)));
  return createStartCandidates(problem).map((each) => ({
    ...each,
    placement: createPlacement(problem, each, "queries"),
  }));
}

/** Some hundred bytes are held for each. */
const MAX_CHUNKS = 2 ** 22;

interface ProblemSettings extends Omit<ResolvedOptionsOf<typeof crossDispatchOptions>, "cost"> {
  readonly isSelfAttention: boolean;
  readonly cost?: OptionsOf<typeof dispatchCostOptions> | undefined;
}

function toSelfAttentionSettings({
  length,
  ...otherSettings
}: ResolvedOptionsOf<typeof dispatchOptions>): ProblemSettings {
  return { ...otherSettings, queries: length, keys: length, isSelfAttention: true };
}

export function createProblem(settings: ProblemSettings): DispatchProblem {
  const { mask, queries, keys, ranks, isSelfAttention } = settings;
  const chunkSize =
    settings.chunkSize ?? Math.max(1, Math.min(DEFAULT_CHUNK_SIZE, Math.ceil(queries / (MIN_CHUNKS * ranks))));
  const chunks = Math.ceil(queries / chunkSize) + (isSelfAttention ? 0 : Math.ceil(keys / chunkSize));
  if (chunks > MAX_CHUNKS) {
    throw new OptionError({
      where: "dispatch: chunkSize",
      expected: `at most ${MAX_CHUNKS} chunks`,
      received: `${chunks} chunks of ${chunkSize} positions`,
      remedy: "pass a larger chunkSize",
    });
  }
  const model = new CostModel(dispatchCostOptions.parse(settings.cost ?? {}));
  return createDispatchProblem({
    masks: groupEqualMasks(mask, queries, keys),
    queries,
    keys,
    isSelfAttention,
    ranks,
    chunkSize,
    model,
  });
}

/** Samples of one mask count together. */
function groupEqualMasks(mask: Mask | readonly Mask[], queries: number, keys: number): WeightedMask[] {
  const sampleCounts = new Map<Mask, number>();
  for (const sampleMask of Array.isArray(mask) ? (mask as readonly Mask[]) : [mask as Mask])
    sampleCounts.set(sampleMask, (sampleCounts.get(sampleMask) ?? 0) + 1);
  if (sampleCounts.size === 0) {
    throw new OptionError({ where: "dispatch: mask", expected: "a mask, or one mask per sample", received: "none" });
  }
  return [...sampleCounts].map(([each, count]) => ({ slices: resolveSlices(each, queries, keys), samples: count }));
}

interface DispatchPlacements {
  readonly queries: Placement;
  readonly keys: Placement;
}

/** By the first mask: all masks and settings, and what was found. A pure function: what is dropped is found again. */
const placementCache = new WeakMap<
  Mask,
  { readonly masks: readonly Mask[]; readonly key: string; readonly placements: DispatchPlacements }[]
>();
const MAX_CACHED_PLACEMENTS = 32;

function solvePlacements(settings: ProblemSettings): DispatchPlacements {
  const { mask, queries, keys, ranks, chunkSize, cost, isSelfAttention } = settings;
  const masks = Array.isArray(mask) ? (mask as readonly Mask[]) : [mask as Mask];
  const resolvedCost = dispatchCostOptions.parse(cost ?? {});
  const key = JSON.stringify([queries, keys, ranks, chunkSize ?? null, isSelfAttention, resolvedCost]);
  const firstMask = masks[0];
  const cachedEntries = (firstMask && placementCache.get(firstMask)) ?? [];
  const cachedEntry = cachedEntries.find(
    (each) =>
      each.key === key && each.masks.length === masks.length && each.masks.every((other, i) => other === masks[i]),
  );
  if (cachedEntry) return cachedEntry.placements;
  const problem = createProblem(settings);
  const { best } = solve(problem);
  const queryPlacement = createPlacement(problem, best, "queries");
  const placements = {
    queries: queryPlacement,
    keys: isSelfAttention ? queryPlacement : createPlacement(problem, best, "keys"),
  };
  if (cachedEntries.length >= MAX_CACHED_PLACEMENTS) cachedEntries.shift();
  cachedEntries.push({ masks: [...masks], key, placements });
  placementCache.set(firstMask!, cachedEntries);
  return placements;
}

function createPlacement(
  { ranks, queries, keys, chunkSize, queryChunks, chunks }: DispatchProblem,
  { assignment, placement }: DispatchCandidate,
  side: "queries" | "keys",
): Placement {
  if (placement) return placement;
  const length = side === "queries" ? queries : keys;
  const [first, end] = side === "queries" ? [0, queryChunks] : [queryChunks, chunks];
  const spans: Span[][] = Array.from({ length: ranks }, () => []);
  for (let chunk = first; chunk < end; chunk++) {
    const rankSpans = spans[assignment[chunk]!]!;
    const start = (chunk - first) * chunkSize;
    const rows = Math.min(length, start + chunkSize) - start;
    const lastSpan = rankSpans.at(-1);
    if (lastSpan && lastSpan.start + lastSpan.length === start)
      rankSpans[rankSpans.length - 1] = { ...lastSpan, length: lastSpan.length + rows };
    else rankSpans.push({ start, length: rows, step: 1 });
  }
  return Object.freeze<Placement>({
    name: "dispatch",
    spans(index, count, total) {
      const rankSpans = spans[index];
      if (rankSpans && count === ranks && total === length) return rankSpans;
      throw new ShapeError({
        where: "dispatch: spans",
        expected: `a shard index below ${ranks}, ${ranks} shards and length ${length}`,
        received: `shard ${formatValue(index)} of ${formatValue(count)} of a sequence of length ${formatValue(total)}`,
        remedy: "call dispatch({ mask, length, ranks }) once for each length and number of ranks",
      });
    },
  });
}
