import {
  dispatch,
  dispatchBounds,
  dispatchCandidates,
  type DispatchOptions,
  evaluateDispatch,
} from "@mosaic/backend-flex";
import { type Mask, masks, type Placement, type Span } from "@mosaic/core";
import { createUniformGenerator } from "./lengths.ts";

/**
 * Gaps to the optimum, as shares of the optimum. They are measured on small instances, of which all placements are
 * compared.
 */
export interface OptimumGaps {
  readonly instances: number;
  /** Number of placements compared. */
  readonly placements: number;
  readonly objectiveGaps: readonly number[];
  /** Step time above the minimum step time of all placements. */
  readonly timeGaps: readonly number[];
  readonly greedyObjectiveGaps: readonly number[];
  /** Number of placements below a lower bound. It is 0 unless a bound is wrong. */
  readonly numBelowBound: number;
}

const CHUNK_SIZE = 16;

/**
 * Compares all placements on instances of two ranks with three to five chunks each, or three ranks with two to three.
 * All ranks have the same number of chunks.
 */
export function measureOptimumGaps(instances: number, seed: number): OptimumGaps {
  const draw = createUniformGenerator(seed);
  const results = Array.from({ length: instances }, (_, i) => comparePlacements(drawInstance(i, draw)));
  return {
    instances,
    placements: results.reduce((sum, { placements }) => sum + placements, 0),
    objectiveGaps: results.map(({ objectiveGap }) => objectiveGap),
    timeGaps: results.map(({ timeGap }) => timeGap),
    greedyObjectiveGaps: results.map(({ greedyObjectiveGap }) => greedyObjectiveGap),
    numBelowBound: results.reduce((sum, each) => sum + each.numBelowBound, 0),
  };
}

interface Instance {
  readonly options: Omit<DispatchOptions, "chunkSize">;
  readonly ranks: number;
  readonly chunksPerRank: number;
}

function drawInstance(index: number, draw: () => number): Instance {
  const ranks = index % 2 === 0 ? 2 : 3;
  const chunksPerRank = ranks === 2 ? 3 + Math.floor(draw() * 3) : 2 + Math.floor(draw() * 2);
  const length = ranks * chunksPerRank * CHUNK_SIZE;
  const row = [4, 16, 64][index % 3]!;
  const cost = { pair: 1, backwardPair: 2.5, row, gradientRow: 2 * row, latency: 0, backward: index % 2 };
  return { options: { mask: drawMask(length, draw), length, ranks, cost }, ranks, chunksPerRank };
}

/** Compares all placements of one instance with the result of dispatch, its greedy candidate and the lower bounds. */
function comparePlacements({ options, ranks, chunksPerRank }: Instance) {
  const dispatchOptions = { ...options, chunkSize: CHUNK_SIZE };
  const bounds = dispatchBounds(dispatchOptions);
  let [minObjective, minTime] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY];
  let [placements, numBelowBound] = [0, 0];
  for (const placement of enumeratePlacements(ranks, chunksPerRank)) {
    const { objective, time } = evaluateDispatch({ ...options, placement });
    minObjective = Math.min(minObjective, objective);
    minTime = Math.min(minTime, time);
    placements++;
    if (time < bounds.time * (1 - 1e-9) || objective < bounds.objective * (1 - 1e-9)) numBelowBound++;
  }
  const result = evaluateDispatch({ ...options, placement: dispatch(dispatchOptions) });
  const greedyCandidate = dispatchCandidates(dispatchOptions).find(({ name }) => name === "greedy")!;
  return {
    placements,
    numBelowBound,
    objectiveGap: relativeGap(result.objective, minObjective),
    timeGap: relativeGap(result.time, minTime),
    greedyObjectiveGap: relativeGap(greedyCandidate.objective, minObjective),
  };
}

/** Returns the excess of `value` as a share of `optimum`. `value` is below `optimum` only by rounding. */
function relativeGap(value: number, optimum: number): number {
  return optimum === 0 ? 0 : Math.max(0, value / optimum - 1);
}

/** Draws a causal, window, block-causal or packed-document mask. */
function drawMask(length: number, draw: () => number): Mask {
  const kind = Math.floor(draw() * 5);
  const size = 2 + Math.floor(draw() * (length - 2));
  if (kind === 0) return masks.causal();
  if (kind === 1) return masks.slidingWindow(size);
  if (kind === 2) return masks.blockCausal(size);
  const lengths: number[] = [];
  for (let remainingTokens = length; remainingTokens > 0; remainingTokens -= lengths.at(-1)!) {
    lengths.push(Math.min(remainingTokens, 1 + Math.floor(length * draw() ** 3)));
  }
  return masks.documents(lengths, kind === 3 ? "full" : "causal");
}

/**
 * Yields all assignments of `chunksPerRank` chunks to each rank. Ranks are interchangeable, so each rank is first used
 * after all lower ranks.
 */
function* enumeratePlacements(ranks: number, chunksPerRank: number): Generator<Placement> {
  const ownerOfChunk = new Array<number>(ranks * chunksPerRank).fill(0);
  const remainingChunks = new Array<number>(ranks).fill(chunksPerRank);
  function* visit(chunk: number, numUsedRanks: number): Generator<Placement> {
    if (chunk === ownerOfChunk.length) {
      yield createPlacement([...ownerOfChunk]);
      return;
    }
    for (let rank = 0; rank <= Math.min(numUsedRanks, ranks - 1); rank++) {
      if (remainingChunks[rank] === 0) continue;
      remainingChunks[rank]!--;
      ownerOfChunk[chunk] = rank;
      yield* visit(chunk + 1, Math.max(numUsedRanks, rank + 1));
      remainingChunks[rank]!++;
    }
  }
  yield* visit(0, 0);
}

function createPlacement(ownerOfChunk: readonly number[]): Placement {
  return {
    name: "enumerated",
    spans: (index) =>
      ownerOfChunk.flatMap((rank, chunk): Span[] =>
        rank === index ? [{ start: chunk * CHUNK_SIZE, length: CHUNK_SIZE, step: 1 }] : [],
      ),
  };
}

export function optimumSummary({
  instances,
  placements,
  objectiveGaps,
  timeGaps,
  greedyObjectiveGaps,
  numBelowBound,
}: OptimumGaps): string {
  const formatPercent = (value: number): string => `${(100 * value).toFixed(2)} %`;
  const describe = (gaps: readonly number[]): string => {
    const sortedGaps = gaps.toSorted((a, b) => a - b);
    const quantileAt = (share: number): string =>
      formatPercent(sortedGaps[Math.min(sortedGaps.length - 1, Math.floor(share * sortedGaps.length))]!);
    const numExact = sortedGaps.filter((value) => value < 1e-9).length;
    return `${numExact} at the optimum, 95th percentile ${quantileAt(0.95)}, maximum ${formatPercent(sortedGaps.at(-1)!)}`;
  };
  return [
    `${instances} instances, ${placements} placements compared, ${numBelowBound} below a lower bound.`,
    `- objective above the optimum: ${describe(objectiveGaps)}`,
    `- step time above the minimum step time: ${describe(timeGaps)}`,
    `- objective of the greedy placement above the optimum: ${describe(greedyObjectiveGaps)}`,
  ].join("\n");
}
