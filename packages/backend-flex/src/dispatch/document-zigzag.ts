import { expectValue, formatValue, type Placement, ShapeError, type Slice, type Span } from "@mosaic/core";
import { type AssignmentLoad, type DispatchCandidate, computeTime } from "./assignment.ts";
import type { DispatchProblem } from "./problem.ts";

/**
 * Creates a placement that applies zigzag to every document of a packed sequence: each document is cut into 2 · count
 * equal pieces, of which shard r has pieces r and 2 · count − 1 − r. It is balanced for causal documents, but every
 * rank requires most of every document. Used by zhuzilin/ring-flash-attention, TransformerEngine and Megatron-LM.
 *
 * @example
 * ```ts
 * import { documentZigzag } from "@mosaic/backend-flex";
 * documentZigzag([4, 4]).spans(1, 2, 8).map(({ start, length }) => [start, length]); // => [[1, 2], [5, 2]]
 * ```
 * @throws OptionError for lengths that are not integers ≥ 0. `spans` throws a ShapeError if their sum is not the length
 *   of the sequence.
 */
export function documentZigzag(lengths: readonly number[]): Placement {
  const areValidLengths =
    Array.isArray(lengths) && lengths.every((length) => Number.isSafeInteger(length) && length >= 0);
  expectValue("documentZigzag", areValidLengths, "an array of integers ≥ 0", lengths);
  const documents = [...lengths];
  const total = documents.reduce((sum, length) => sum + length, 0);
  return Object.freeze<Placement>({
    name: "documentZigzag",
    spans(index, count, length) {
      if (length !== total || !Number.isSafeInteger(count) || !(index >= 0 && index < count)) {
        throw new ShapeError({
          where: "documentZigzag: spans",
          expected: `a shard index from 0 to the number of shards − 1, and length ${total}, the sum of the document lengths`,
          received: `shard ${formatValue(index)} of ${formatValue(count)} of a sequence of length ${formatValue(length)}`,
        });
      }
      const spans: Span[] = [];
      let start = 0;
      for (const each of documents) {
        for (const pieceIndex of [index, 2 * count - 1 - index])
          appendSpan(spans, start, zigzagRange(each, pieceIndex, count));
        start += each;
      }
      return spans;
    },
  });
}

function zigzagRange(length: number, pieceIndex: number, ranks: number): readonly [start: number, end: number] {
  return [Math.floor((pieceIndex * length) / (2 * ranks)), Math.floor(((pieceIndex + 1) * length) / (2 * ranks))];
}

function appendSpan(spans: Span[], offset: number, [start, end]: readonly [number, number]): void {
  if (start === end) return;
  const lastSpan = spans.at(-1);
  if (lastSpan && lastSpan.start + lastSpan.length === offset + start)
    spans[spans.length - 1] = { ...lastSpan, length: lastSpan.length + end - start };
  else spans.push({ start: offset + start, length: end - start, step: 1 });
}

/**
 * Returns the placement with its load, computed in closed form. Returns undefined unless there is a single mask, of
 * consecutive causal or full documents, in self-attention on one level.
 */
export function documentZigzagCandidate(problem: DispatchProblem): DispatchCandidate | undefined {
  const { masks, isSelfAttention, model } = problem;
  const slices = masks[0]!.slices.toSorted((a, b) => a.q0 - b.q0);
  if (!isSelfAttention || masks.length > 1 || model.isTwoLevel || !arePackedDocuments(slices, problem.queries))
    return undefined;
  const load = computeZigzagLoad(problem, slices, masks[0]!.samples);
  return {
    name: "documentZigzag",
    assignment: new Int32Array(0),
    placement: documentZigzag(slices.map(({ q0, q1 }) => q1 - q0)),
    ...computeTime(problem, load),
  };
}

function arePackedDocuments(slices: readonly Slice[], length: number): boolean {
  let end = 0;
  for (const { q0, q1, k0, k1, type } of slices) {
    if (q0 !== end || k0 !== q0 || k1 !== q1 || (type !== "causal" && type !== "full")) return false;
    end = q1;
  }
  return end === length;
}

function computeZigzagLoad(
  { ranks }: DispatchProblem,
  slices: readonly Slice[],
  samples: number,
): Omit<AssignmentLoad, "time" | "objective"> {
  const [pairs, receivedRows, sentRows] = [new Float64Array(ranks), new Float64Array(ranks), new Float64Array(ranks)];
  // By piece: the number of ranks whose last row is in this piece or a later one.
  const laterRankCounts = new Int32Array(2 * ranks + 1);
  const pieceStarts = new Float64Array(2 * ranks + 1);
  for (const { q0, q1, type } of slices) {
    const length = q1 - q0;
    const isFull = type === "full";
    for (let i = 0; i <= 2 * ranks; i++) pieceStarts[i] = Math.floor((i * length) / (2 * ranks));
    laterRankCounts.fill(0);
    for (let rank = 0; rank < ranks; rank++) {
      const upperPiece = 2 * ranks - 1 - rank;
      const lastPiece = pieceStarts[upperPiece] === pieceStarts[upperPiece + 1] ? rank : upperPiece;
      if (pieceStarts[lastPiece] !== pieceStarts[lastPiece + 1]) laterRankCounts[isFull ? 2 * ranks - 1 : lastPiece]!++;
    }
    for (let i = 2 * ranks - 1; i >= 0; i--) laterRankCounts[i]! += laterRankCounts[i + 1]!;
    for (let rank = 0; rank < ranks; rank++) {
      let ownRows = 0;
      let visibleRows = 0;
      for (let side = 0; side < 2; side++) {
        const i = side === 0 ? rank : 2 * ranks - 1 - rank;
        const start = pieceStarts[i]!;
        const end = pieceStarts[i + 1]!;
        if (start === end) continue;
        ownRows += end - start;
        visibleRows = isFull ? length : end;
        pairs[rank]! += samples * (isFull ? (end - start) * length : ((end - start) * (start + 1 + end)) / 2);
        // The receivers are the ranks that have a row in or after the piece, except for this rank.
        sentRows[rank]! += samples * (end - start) * (laterRankCounts[i]! - 1);
      }
      receivedRows[rank]! += samples * (visibleRows - ownRows);
    }
  }
  return { pairs, receivedRows, sentRows, hosts: undefined };
}
