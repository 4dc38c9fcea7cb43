import { masks } from "@mosaic/core";
import { expect, test } from "vitest";
import { evaluateAssignment } from "../src/dispatch/assignment.ts";
import { computeBounds } from "../src/dispatch/bounds.ts";
import { createProblem } from "../src/dispatch/dispatch.ts";
import { ChunkMinima, minRanksOfSuffixes } from "../src/dispatch/packing.ts";

// Park–Miller generator.
function createRandom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state * 48_271) % 2_147_483_647;
    return state / 2_147_483_647;
  };
}

/** Calls `visit` for all assignments of at most `maxChunks` chunks to a rank, up to a permutation of the ranks. */
function forEachAssignment(
  chunks: number,
  { ranks, maxChunks, visit }: { ranks: number; maxChunks: number; visit: (assignment: Int32Array) => void },
): void {
  const assignment = new Int32Array(chunks);
  const counts = new Int32Array(ranks);
  const assign = (chunk: number, numUsedRanks: number): void => {
    if (chunk === chunks) {
      visit(assignment);
      return;
    }
    for (let rank = 0; rank <= Math.min(numUsedRanks, ranks - 1); rank++) {
      if (counts[rank] === maxChunks) continue;
      counts[rank]!++;
      assignment[chunk] = rank;
      assign(chunk + 1, Math.max(numUsedRanks, rank + 1));
      counts[rank]!--;
    }
  };
  assign(0, 0);
}

// In half of the instances, the number of chunks is not a multiple of the number of ranks.
test("no assignment of at most ⌈n/P⌉ chunks a rank is below the bounds", () => {
  const random = createRandom(5);
  let numTightRowBounds = 0;
  for (let trial = 0; trial < 80; trial++) {
    const ranks = 2 + (trial % 3);
    const chunks = ranks * 2 + (trial % 2) * (1 + Math.floor(random() * (ranks - 1)));
    const chunkSize = 1 + Math.floor(random() * 16);
    const length = chunks * chunkSize - Math.floor(random() * chunkSize);
    const lengths: number[] = [];
    for (let rows = length; rows > 0; rows -= lengths.at(-1)!)
      lengths.push(Math.min(rows, 1 + Math.floor(random() ** 2 * length)));
    const problem = createProblem({
      where: "test",
      mask: masks.documents(lengths, "causal"),
      queries: length,
      keys: length,
      ranks,
      chunkSize,
      isSelfAttention: true,
      cost: { pair: random() * 1e-8, row: 1e-7, latency: 0, backward: trial % 4 === 0 ? 1 : 0 },
    });
    const bounds = computeBounds(problem);
    const minima = { imbalance: Infinity, rows: Infinity, balancedRows: Infinity, time: Infinity, objective: Infinity };
    const visit = (assignment: Int32Array): void => {
      const { time, objective, pairs, receivedRows } = evaluateAssignment(problem, assignment);
      const imbalance = (Math.max(...pairs) * ranks) / problem.totalPairs;
      const rows = receivedRows.reduce((sum, count) => sum + count, 0) / ranks;
      minima.time = Math.min(minima.time, time);
      minima.objective = Math.min(minima.objective, objective);
      minima.imbalance = Math.min(minima.imbalance, imbalance);
      minima.rows = Math.min(minima.rows, rows);
      if (imbalance <= 1.02 * bounds.imbalance) minima.balancedRows = Math.min(minima.balancedRows, rows);
    };
    forEachAssignment(chunks, { ranks, maxChunks: Math.ceil(chunks / ranks), visit });
    for (const [name, minimum] of Object.entries(minima)) {
      const bound = bounds[name as keyof typeof minima];
      expect(bound, `${name} of documents ${lengths.join(", ")} on ${ranks} ranks`).toBeLessThanOrEqual(
        minimum * (1 + 1e-9),
      );
    }
    if (minima.balancedRows <= bounds.balancedRows * (1 + 1e-9)) numTightRowBounds++;
  }
  // 25; it is 2 without whole chunks in the bound of rows.
  expect(numTightRowBounds).toBeGreaterThanOrEqual(20);
});

/** Minima of so many ranks that none needs further chunks. */
const noFurtherChunks = (pairs: Float64Array): ChunkMinima => new ChunkMinima(pairs, 1000, pairs.length);

test("no assignment of chunks with limited pairs uses fewer ranks than the packing bound", () => {
  const random = createRandom(11);
  let numTightBounds = 0;
  for (let trial = 0; trial < 200; trial++) {
    const count = 2 + Math.floor(random() * 6);
    const pairs = Float64Array.from({ length: count }, () => 1 + Math.floor(random() * 20));
    const maxPairs = 20 + Math.floor(random() * 20);
    const maxChunks = 2 + Math.floor(random() * 3);
    const minRanks = minRanksOfSuffixes(pairs, maxPairs, { maxChunks, minima: noFurtherChunks(pairs) });
    for (let first = 0; first < count; first++) {
      const suffix = pairs.subarray(first);
      let fewestRanks = count;
      const visit = (assignment: Int32Array): void => {
        const pairsByRank = new Float64Array(suffix.length);
        for (const [chunk, rank] of assignment.entries()) pairsByRank[rank]! += suffix[chunk]!;
        if (pairsByRank.every((each) => each <= maxPairs))
          fewestRanks = Math.min(fewestRanks, Math.max(...assignment) + 1);
      };
      forEachAssignment(suffix.length, { ranks: suffix.length, maxChunks, visit });
      expect(minRanks[first]).toBeLessThanOrEqual(fewestRanks);
      if (minRanks[first] === fewestRanks) numTightBounds++;
    }
  }
  // 856 of 877 suffixes.
  expect(numTightBounds).toBeGreaterThan(850);
});

// A document is a range of the chunks. Its ranks also have other chunks, since no rank has more than ⌈n/P⌉.
test("no assignment of all chunks uses fewer ranks for a suffix of a document than the bound with further chunks", () => {
  const random = createRandom(23);
  let [numSuffixes, numTightBounds, numTighterBounds] = [0, 0, 0];
  for (let trial = 0; trial < 100; trial++) {
    const ranks = 2 + (trial % 2);
    const chunks = (trial % 4 < 2 ? 3 : 4) * ranks - (trial % 3 === 0 ? 1 : 0) - (trial % 4 === 3 ? 3 : 0);
    const pairs = Float64Array.from({ length: chunks }, () => 1 + Math.floor(random() * 20));
    const maxChunks = Math.ceil(chunks / ranks);
    const maxPairs = Math.ceil((pairs.reduce((sum, each) => sum + each, 0) / ranks) * (1 + random() / 10));
    const start = Math.floor((random() * chunks) / 2);
    const end = start + 2 + Math.floor(random() * (chunks - start - 1));
    const fewestRanks = new Array<number>(chunks).fill(Number.POSITIVE_INFINITY);
    const visit = (assignment: Int32Array): void => {
      const pairsByRank = new Float64Array(ranks);
      for (const [chunk, rank] of assignment.entries()) pairsByRank[rank]! += pairs[chunk]!;
      if (pairsByRank.some((each) => each > maxPairs)) return;
      for (let first = start; first < end; first++)
        fewestRanks[first] = Math.min(fewestRanks[first]!, new Set(assignment.subarray(first, end)).size);
    };
    forEachAssignment(chunks, { ranks, maxChunks, visit });
    if (fewestRanks[start] === Number.POSITIVE_INFINITY) continue;
    const document = pairs.subarray(start, end);
    const minima = new ChunkMinima(pairs, ranks, maxChunks);
    const minRanks = minRanksOfSuffixes(document, maxPairs, { maxChunks, minima });
    const minRanksAlone = minRanksOfSuffixes(document, maxPairs, { maxChunks, minima: noFurtherChunks(document) });
    for (const [i, bound] of minRanks.entries()) {
      expect(bound).toBeLessThanOrEqual(fewestRanks[start + i]!);
      expect(bound).toBeGreaterThanOrEqual(minRanksAlone[i]!);
      numSuffixes++;
      if (bound === fewestRanks[start + i]) numTightBounds++;
      if (bound > minRanksAlone[i]!) numTighterBounds++;
    }
  }
  // 327 of 371 suffixes are at the bound; of 5, the bound is higher than without further chunks.
  expect(numTightBounds / numSuffixes).toBeGreaterThan(0.85);
  expect(numTighterBounds).toBeGreaterThan(0);
});
