import { type Mask, masks, type Placement, resolveShards, spansLength, striped, zigzag } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { evaluateAssignment } from "../src/dispatch/assignment.ts";
import { computeBounds } from "../src/dispatch/bounds.ts";
import { createProblem } from "../src/dispatch/dispatch.ts";
import type { DispatchProblem } from "../src/dispatch/problem.ts";
import { solve } from "../src/dispatch/solve.ts";
import {
  crossDispatch,
  dispatch,
  dispatchBounds,
  dispatchCandidates,
  documentZigzag,
  evaluateDispatch,
} from "../src/index.ts";

/** Creates a generator of uniform numbers in [0, 1) from a seed. */
function createRandom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

function drawLengths(total: number, nextUniform: () => number, maxLength: number): number[] {
  const lengths: number[] = [];
  for (let numRemaining = total; numRemaining > 0; ) {
    const length = Math.min(numRemaining, 1 + Math.floor(maxLength * nextUniform() ** 3));
    lengths.push(length);
    numRemaining -= length;
  }
  return lengths;
}

const blockCausal = (size: number): Mask => ({
  name: `blockCausal(${size})`,
  slices: (queries) =>
    Array.from({ length: Math.ceil(queries / size) }, (_, i) => {
      const end = Math.min(queries, (i + 1) * size);
      return { q0: i * size, q1: end, k0: 0, k1: end, type: "full" as const };
    }),
});

/** Draws a mask of one of five kinds. */
function drawMask(length: number, nextUniform: () => number): Mask {
  const kind = Math.floor(nextUniform() * 5);
  if (kind === 0) return masks.causal();
  if (kind === 1) return masks.slidingWindow(2 + Math.floor(nextUniform() * (length - 2)));
  if (kind === 2) return blockCausal(2 + Math.floor(nextUniform() * (length - 2)));
  const lengths = drawLengths(length, nextUniform, nextUniform() < 0.3 ? length : length / 3);
  return masks.documents(lengths, kind === 3 ? "full" : "causal");
}

const lengths = drawLengths(5000, createRandom(3), 2500);
const packedMask = masks.documents(lengths, "causal");

/** Returns the options of `dispatch` that `evaluateDispatch` accepts. */
function omitChunkSize<Options extends { readonly chunkSize: number }>(options: Options): Omit<Options, "chunkSize"> {
  const entries = Object.entries(options).filter(([name]) => name !== "chunkSize");
  return Object.fromEntries(entries) as Omit<Options, "chunkSize">;
}

describe("dispatch", () => {
  test.each([
    ["of packed documents", packedMask, 5000, 7, 64],
    ["with a short last chunk", masks.causal(), 1003, 4, 100],
    ["with more ranks than chunks", masks.causal(), 90, 8, 30],
    ["of a window", masks.slidingWindow(77), 2000, 5, undefined],
    ["of what nothing sees", masks.fromSlices([]), 300, 3, 16],
    ["of an empty sequence", masks.full(), 0, 3, undefined],
    ["on one rank", masks.full(), 100, 1, 8],
  ] as const)("returns a valid placement: %s", (_, mask, length, ranks, chunkSize) => {
    const placement = dispatch({ mask, length, ranks, chunkSize });
    const shards = resolveShards(placement, ranks, length);
    const maxRows = Math.ceil(Math.ceil(length / (chunkSize ?? 512)) / ranks) * (chunkSize ?? 512);
    for (const spans of shards) expect(spansLength(spans)).toBeLessThanOrEqual(maxRows);
  });

  test("returns equal placements for equal masks, and the cached placement for the same mask", () => {
    const dispatchAgain = () =>
      dispatch({ mask: masks.documents(lengths, "causal"), length: 5000, ranks: 6, chunkSize: 32 });
    const [first, second] = [dispatchAgain(), dispatchAgain()];
    expect(first).not.toBe(second);
    for (let rank = 0; rank < 6; rank++) expect(first.spans(rank, 6, 5000)).toEqual(second.spans(rank, 6, 5000));
    const dispatchCached = () => dispatch({ mask: packedMask, length: 5000, ranks: 6, chunkSize: 32 });
    expect(dispatchCached()).toBe(dispatchCached());
    expect(dispatch({ mask: packedMask, length: 5000, ranks: 6, chunkSize: 32, cost: { row: 1 } })).not.toBe(
      dispatchCached(),
    );
    expect(dispatchCached().spans(2, 6, 5000)).toEqual(first.spans(2, 6, 5000));
  });

  test("returns the same spans after other masks evict a placement from the cache", () => {
    const getSpans = () => dispatch({ mask: packedMask, length: 5000, ranks: 3, chunkSize: 64 }).spans(1, 3, 5000);
    const spansBefore = getSpans();
    for (let row = 1; row <= 40; row++)
      dispatch({ mask: packedMask, length: 5000, ranks: 3, chunkSize: 500, cost: { row } });
    expect(getSpans()).toEqual(spansBefore);
  });

  test("uses neither Math.random nor performance.now", () => {
    const [random, now] = [Math.random, performance.now];
    const throwOnCall = () => {
      throw new Error("read");
    };
    Math.random = throwOnCall;
    performance.now = throwOnCall;
    try {
      dispatch({ mask: masks.documents(lengths, "causal"), length: 5000, ranks: 4, chunkSize: 64 });
    } finally {
      Math.random = random;
      performance.now = now;
    }
  });

  test("crossDispatch returns valid placements of queries and keys, cheaper than contiguous ones", () => {
    const slices = [
      { q0: 0, q1: 40, k0: 300, k1: 400, type: "full" },
      { q0: 40, q1: 100, k0: 0, k1: 300, type: "full" },
    ] as const;
    const mask = masks.fromSlices([...slices]);
    const { queries, keys } = crossDispatch({ mask, queries: 100, keys: 400, ranks: 4, chunkSize: 10 });
    resolveShards(queries, 4, 100);
    resolveShards(keys, 4, 400);
    const sharedOptions = { mask, length: 100, keys: 400, ranks: 4 };
    const dispatched = evaluateDispatch({ ...sharedOptions, placement: queries, keyPlacement: keys });
    const contiguousEvaluation = evaluateDispatch({ ...sharedOptions, placement: "contiguous" });
    expect(dispatched.objective).toBeLessThan(contiguousEvaluation.objective);
  });

  test.each(["left", "right"] as const)("places padded samples as their own masks, padded on the %s", (padding) => {
    const [length, ranks, chunkSize, samples] = [96, 4, 4, [96, 20, 7, 0]];
    const mask = samples.map((tokens) => masks.documents([tokens >> 1, tokens - (tokens >> 1)], "causal"));
    const shiftedMasks = mask.map((each, sample) => {
      const offset = padding === "left" ? length - samples[sample]! : 0;
      const slices = each.slices(samples[sample]!, samples[sample]!);
      return masks.fromSlices(
        slices.map((slice) => ({
          ...slice,
          q0: slice.q0 + offset,
          q1: slice.q1 + offset,
          k0: slice.k0 + offset,
          k1: slice.k1 + offset,
        })),
      );
    });
    const options = { mask, length, ranks, chunkSize, lengths: samples, padding };
    const [placement, expected] = [dispatch(options), dispatch({ mask: shiftedMasks, length, ranks, chunkSize })];
    for (let rank = 0; rank < ranks; rank++)
      expect(placement.spans(rank, ranks, length)).toEqual(expected.spans(rank, ranks, length));
    const evaluation = evaluateDispatch({ ...omitChunkSize(options), placement });
    expect(evaluation).toEqual(evaluateDispatch({ mask: shiftedMasks, length, ranks, placement }));
    expect(evaluation.ranks.reduce((sum, { pairs }) => sum + pairs, 0)).toBe(
      mask.reduce((sum, each, i) => sum + masks.maskArea(each, samples[i]!, samples[i]!), 0),
    );
    const { queries, keys } = crossDispatch({
      ...{ mask, queries: length, keys: length + 8, ranks, chunkSize, padding },
      lengths: { queries: samples, keys: samples },
    });
    resolveShards(queries, ranks, length);
    resolveShards(keys, ranks, length + 8);
  });

  test("balances the tokens of padded samples, with one mask for all and a cached placement for each padding", () => {
    const options = { mask: masks.causal(), length: 1024, ranks: 4, chunkSize: 32, lengths: [1024, 100, 60, 60, 50] };
    const placements = (["left", "right"] as const).map((padding) => dispatch({ ...options, padding }));
    expect(placements[0]).not.toBe(placements[1]);
    expect(dispatch(options)).toBe(placements[1]);
    const unpadded = { mask: options.mask, length: 1024, ranks: 4, chunkSize: 32 };
    expect(dispatch(unpadded)).not.toBe(placements[1]);
    for (const [i, padding] of (["left", "right"] as const).entries()) {
      const evaluate = (placement: Placement) =>
        evaluateDispatch({ ...omitChunkSize(options), padding, placement }).objective;
      expect(evaluate(placements[i]!)).toBeLessThanOrEqual(evaluate(zigzag()));
      expect(dispatchBounds({ ...options, padding }).objective).toBeLessThanOrEqual(evaluate(placements[i]!));
    }
  });

  test("rejects lengths that do not match the masks or the sequence", () => {
    const options = { mask: masks.causal(), length: 10, ranks: 2 };
    expect(() => dispatch({ ...options, lengths: [] })).toThrow(
      "dispatch: lengths: expected the length of each sample",
    );
    expect(() => dispatch({ ...options, mask: [masks.causal()], lengths: [3, 4] })).toThrow(
      /dispatch: lengths: expected .* one length per sample, received masks: 1, lengths of queries: 2, lengths of keys: 2/,
    );
    expect(() => dispatch({ ...options, lengths: [3, 11] })).toThrow(/lengths.*\[1\]: expected at most 10 tokens.*11/);
    expect(() => dispatch({ ...options, lengths: [3], padding: "top" as "left" })).toThrow(/padding: expected .*"top"/);
    expect(() => dispatch({ ...options, lengths: { queries: [3] } as never })).toThrow(/dispatch: lengths: expected/);
    for (const [name, call] of Object.entries({ dispatchBounds, dispatchCandidates })) {
      expect(() => call({ ...options, lengths: [] })).toThrow(`${name}: lengths: expected the length of each sample`);
    }
    const crossLengths = { queries: [3, 4], keys: [5] };
    expect(() => crossDispatch({ mask: masks.full(), queries: 10, keys: 10, ranks: 2, lengths: crossLengths })).toThrow(
      /^crossDispatch: lengths: .*received lengths of queries: 2, lengths of keys: 1/,
    );
  });

  test("rejects invalid arguments, and placements reject other lengths and numbers of ranks", () => {
    const placement = dispatch({ mask: packedMask, length: 5000, ranks: 4 });
    expect(() => placement.spans(0, 5, 5000)).toThrow("a shard index below 4, 4 shards and length 5000");
    expect(() => dispatch({ mask: [], length: 10, ranks: 2 })).toThrow("a mask, or one mask per sample");
    expect(() => dispatch({ mask: packedMask, length: 10, ranks: 2 })).toThrow("documents");
    expect(() => dispatch({ mask: packedMask, length: 5000, ranks: 0 })).toThrow("ranks");
    expect(() => dispatch({ mask: masks.causal(), length: 2 ** 40, ranks: 2, chunkSize: 2 })).toThrow("chunks");
    expect(() => documentZigzag([3]).spans(0, 2, 4)).toThrow("length 3");
  });
});

describe("evaluateDispatch", () => {
  test.each([
    ["one mask", packedMask, {}],
    ["a separate mask for each sample", [packedMask, masks.causal(), packedMask, masks.slidingWindow(50)], {}],
    ["hosts of three ranks", packedMask, { ranksPerHost: 3 }],
    ["forward only", masks.full(), { backward: 0 }],
  ] as const)("computes the same costs from spans as the candidates from chunks: %s", (_, mask, cost) => {
    const options = { mask: mask as Mask | readonly Mask[], length: 5000, ranks: 6, chunkSize: 100, cost };
    for (const { placement, time, objective, name } of dispatchCandidates(options)) {
      const evaluation = evaluateDispatch({ ...omitChunkSize(options), placement });
      expect([name, evaluation.time]).toEqual([name, expect.closeTo(time, 12)]);
      expect([name, evaluation.objective]).toEqual([name, expect.closeTo(objective, 12)]);
      const bounds = dispatchBounds(options);
      if (name !== "documentZigzag") expect(evaluation.objective).toBeGreaterThanOrEqual(bounds.objective * (1 - 1e-9));
    }
  });

  test("counts the same pairs and rows as a naive count", () => {
    const nextUniform = createRandom(11);
    for (let trial = 0; trial < 40; trial++) {
      const [length, ranks] = [20 + Math.floor(nextUniform() * 40), 1 + Math.floor(nextUniform() * 5)];
      const mask = drawMask(length, nextUniform);
      const placement: Placement =
        trial % 4 === 0 ? striped() : trial % 4 === 1 ? zigzag() : dispatch({ mask, length, ranks, chunkSize: 3 });
      const owner = new Array<number>(length);
      for (let rank = 0; rank < ranks; rank++) {
        for (const { start, length: count, step } of placement.spans(rank, ranks, length))
          for (let i = 0; i < count; i++) owner[start + i * step] = rank;
      }
      const pairs = new Array<number>(ranks).fill(0);
      const requiredRows = new Set<number>();
      const slices = mask.slices(length, length);
      for (let q = 0; q < length; q++) {
        for (let k = 0; k < length; k++) {
          if (!slices.some((slice) => isPairVisible(slice, q, k))) continue;
          pairs[owner[q]!]!++;
          if (owner[q] !== owner[k]) requiredRows.add(owner[q]! * length + k);
        }
      }
      const evaluation = evaluateDispatch({ mask, length, ranks, placement });
      expect(evaluation.ranks.map((rank) => rank.pairs)).toEqual(pairs);
      expect(evaluation.rows).toBe(requiredRows.size);
      const received = pairs.map(
        (_, rank) => [...requiredRows].filter((at) => Math.floor(at / length) === rank).length,
      );
      const sent = pairs.map((_, rank) => [...requiredRows].filter((at) => owner[at % length] === rank).length);
      expect(evaluation.ranks.map((rank) => rank.receivedRows)).toEqual(received);
      expect(evaluation.ranks.map((rank) => rank.sentRows)).toEqual(sent);
    }
  });
});

function isPairVisible(slice: ReturnType<Mask["slices"]>[number], q: number, k: number): boolean {
  if (q < slice.q0 || q >= slice.q1) return false;
  const [movesStart, movesEnd] = [slice.type === "inverseCausal", slice.type === "causal"];
  const movesBoth = slice.type === "bidirectionalCausal";
  return (
    k >= slice.k0 + (movesStart || movesBoth ? q - slice.q0 : 0) &&
    k < slice.k1 - (movesEnd || movesBoth ? slice.q1 - 1 - q : 0)
  );
}

describe("optimality", () => {
  test("the objective never exceeds that of the best candidate", () => {
    const nextUniform = createRandom(5);
    for (let trial = 0; trial < 25; trial++) {
      const [length, ranks] = [2000 + Math.floor(nextUniform() * 3000), 2 + Math.floor(nextUniform() * 14)];
      const options = {
        mask: drawMask(length, nextUniform),
        length,
        ranks,
        chunkSize: 64,
        cost: { row: 1e-6 * nextUniform() ** 2 },
      };
      const evaluationOptions = omitChunkSize(options);
      const objective = evaluateDispatch({ ...evaluationOptions, placement: dispatch(options) }).objective;
      for (const { placement } of dispatchCandidates(options))
        expect(objective).toBeLessThanOrEqual(
          evaluateDispatch({ ...evaluationOptions, placement }).objective * (1 + 1e-9),
        );
    }
  });

  // Compares all assignments of 6 to 10 chunks to 2 or 3 ranks with equal numbers of chunks. For 200 instances, run
  // `bench:dispatch --part optimum`.
  test("the objective is within 3 % of the optimum on 60 instances, and no assignment is below the bounds", () => {
    const nextUniform = createRandom(17);
    const chunkSize = 16;
    let maxGap = 0;
    for (let trial = 0; trial < 60; trial++) {
      const ranks = trial % 2 === 0 ? 2 : 3;
      const chunksPerRank = ranks === 2 ? 3 + Math.floor(nextUniform() * 3) : 2 + Math.floor(nextUniform() * 2);
      const length = ranks * chunksPerRank * chunkSize;
      const cost = {
        pair: 1,
        row: [4, 16, 64][trial % 3]!,
        backwardPair: 2.5,
        gradientRow: [8, 32, 128][trial % 3]!,
        latency: 0,
        backward: trial % 2,
      };
      const settings = { mask: drawMask(length, nextUniform), queries: length, keys: length, ranks, chunkSize, cost };
      const problem = createProblem({ where: "test", ...settings, isSelfAttention: true });
      const optimum = searchExhaustively(problem, chunksPerRank);
      const { best } = solve(problem);
      maxGap = Math.max(maxGap, best.objective / optimum - 1);
    }
    expect(maxGap).toBeLessThanOrEqual(0.03);
  });
});

/** Returns the least objective of all assignments, and compares each with the bounds. */
function searchExhaustively(problem: DispatchProblem, chunksPerRank: number): number {
  const { ranks, chunks } = problem;
  const bounds = computeBounds(problem);
  const assignment = new Int32Array(chunks);
  const remainingChunks = new Int32Array(ranks).fill(chunksPerRank);
  const mean = problem.totalPairs / ranks;
  let optimum = Number.POSITIVE_INFINITY;
  const visit = (chunk: number, numUsedRanks: number): void => {
    if (chunk === chunks) {
      const { time, objective, pairs, receivedRows } = evaluateAssignment(problem, assignment);
      optimum = Math.min(optimum, objective);
      const imbalance = Math.max(...pairs) / mean;
      const rows = receivedRows.reduce((sum, count) => sum + count, 0) / ranks;
      const isAtLeast = (value: number, bound: number): boolean => value >= bound * (1 - 1e-9);
      const isBalanced = imbalance <= 1.02 * bounds.imbalance;
      const boundsHold =
        isAtLeast(time, bounds.time) &&
        isAtLeast(objective, bounds.objective) &&
        isAtLeast(imbalance, bounds.imbalance) &&
        isAtLeast(rows, bounds.rows) &&
        (!isBalanced || isAtLeast(rows, bounds.balancedRows));
      if (!boundsHold) expect({ time, objective, imbalance, rows, assignment: [...assignment] }).toEqual(bounds);
      return;
    }
    for (let rank = 0; rank <= Math.min(numUsedRanks, ranks - 1); rank++) {
      if (remainingChunks[rank] === 0) continue;
      remainingChunks[rank]!--;
      assignment[chunk] = rank;
      visit(chunk + 1, Math.max(numUsedRanks, rank + 1));
      remainingChunks[rank]!++;
    }
  };
  visit(0, 0);
  return optimum;
}
