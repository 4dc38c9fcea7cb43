import type { RecordedRank } from "../record.ts";
import type { TapeReader } from "../symbolic/tape.ts";
import { origin, volume } from "./box.ts";
import { type Content, type ContentEntry, shiftRows } from "./content.ts";
import {
  shiftExpectedRows,
  hasExpectedRows,
  type CombineMode,
  combine,
  intersectEntries,
  reduceMessages,
  haveEqualRows,
  decodeSum,
} from "./entries.ts";
import type { ReplayContext } from "./context.ts";
import { AttentionOperands } from "./operands.ts";
import type { PositionList } from "./positions.ts";
import type { RankMemory } from "./rank-memory.ts";
import { SinkReplay, evaluateSinks } from "./sinks.ts";
import { EMPTY_SUM } from "./sums.ts";
import {
  describeValue,
  isDelta,
  isFill,
  decodeKind,
  decodePayload,
  formatPositions,
  type Rows,
  type RowSide,
  type SumName,
  encodeValue,
} from "./values.ts";

const resultSides = { out: "queries", lse: "queries", dq: "queries", dk: "keys", dv: "keys" } as const satisfies Record<
  SumName,
  RowSide
>;

/** Creates the rows of a fill, which has none. */
function createPlaceholderRows(positions: PositionList): Rows {
  return { batch: 0, head: 0, column: 0, positions };
}

/**
 * All orders of four axes, the natural order first. Rows may be moved and added through views whose axes are in another
 * order than attention's.
 */
const axisPermutations: readonly (readonly number[])[] = permutations([0, 1, 2, 3]);

function permutations(axes: readonly number[]): number[][] {
  if (axes.length === 0) return [[]];
  return axes.flatMap((axis, i) => permutations(axes.toSpliced(i, 1)).map((tail) => [axis, ...tail]));
}

/**
 * Replays the kernels of one rank on the contents of its memory. Nearly every operand is a single region that fills its
 * storage. This case is tried first, and the general case, box by box, gives the same result.
 */
export class ComputeReplay {
  readonly #context: ReplayContext;
  readonly #memory: RankMemory;
  readonly #operands: AttentionOperands;
  readonly #sinks: SinkReplay;
  readonly #placeholderRows: Rows;
  /** Sums already reported as used before they are complete. */
  readonly #reportedPartialSums = new Set<number>();
  /** The sum and rows last found complete. All tiles of a backward use the same. */
  #lastCompleteSum: { sum: number; rows: PositionList | undefined } = { sum: EMPTY_SUM, rows: undefined };

  /** The statistics last found correct: the queries, the views, and the contents of their storages. */
  #lastStatistics: readonly unknown[] = [];

  constructor(context: ReplayContext, recordedRank: RecordedRank, memory: RankMemory) {
    this.#context = context;
    this.#memory = memory;
    this.#operands = new AttentionOperands(context, recordedRank, memory);
    this.#sinks = new SinkReplay(context, recordedRank, memory);
    this.#placeholderRows = createPlaceholderRows(context.positions.fromSpans([]));
  }

  /** The phase and the number of its last tile. */
  get location(): string {
    return `${this.#operands.phase}, after tile ${this.#operands.tileNumber}`;
  }

  get phase(): string {
    return this.#operands.phase;
  }

  beginPhase(phase: string): void {
    this.#operands.phase = phase;
    this.#operands.tileNumber = 0;
  }

  attend(event: TapeReader): void {
    const operands = this.#operands;
    const [out, lse] = [event.arg(0), event.arg(1)];
    const tile = operands.loadTile(event, 5, { q: event.arg(2), k: event.arg(3) });
    if (tile < 0 || !operands.readSource("v", event.arg(4), operands.keys)) return;
    this.#accumulate(tile, out, "out", operands.queries);
    this.#accumulate(tile, lse, "lse", operands.queries);
    this.#checkOutMatchesLse(out, lse);
  }

  attendBackward(event: TapeReader): void {
    const operands = this.#operands;
    const tile = operands.loadTile(event, 9, { q: event.arg(3), k: event.arg(7) });
    if (tile < 0) return;
    const { queries, keys } = operands;
    if (!operands.readSource("dOut", event.arg(4), queries) || !operands.readSource("v", event.arg(8), keys)) return;
    if (!this.#checkStatistics(event.arg(5), event.arg(6), queries)) return;
    this.#accumulate(tile, event.arg(0), "dq", queries);
    this.#accumulate(tile, event.arg(1), "dk", keys);
    this.#accumulate(tile, event.arg(2), "dv", keys);
  }

  /** into ← merge of into and from, which are out and lse of the same queries over different keys. */
  merge(event: TapeReader): void {
    if (this.#sinks.merge(event, this.#operands)) return;
    for (const [i, operand] of (["out", "lse"] as const).entries()) {
      if (this.#combine(event.arg(i), [event.arg(i), event.arg(i + 2)], operand)) continue;
      this.#operands.reportViolation(
        "data",
        `rank ${this.#operands.rank}, ${this.location}: merge: the ${operand} operands belong to different queries`,
      );
    }
  }

  /** Adds gradients of the same rows. The sum of anything else is unknown afterwards. */
  add(event: TapeReader): void {
    const out = event.arg(0);
    if (!this.#combine(out, [event.arg(1), event.arg(2)], "add")) this.#memory.write(out, []);
  }

  copy(event: TapeReader): void {
    const [out, x] = [event.arg(0), event.arg(1)];
    const { box } = this.#memory.view(out).layout;
    const sourceBox = this.#memory.view(x).layout.box;
    if (this.#sinks.copy(out, x)) return;
    const hasSameShape = box.sizes.every((size, i) => size === sourceBox.sizes[i]);
    const region = hasSameShape ? this.#memory.singleRegion(x) : undefined;
    if (region) this.#memory.writeSingleRegion(out, region.value, region.rows);
    else if (hasSameShape && this.#memory.isDense(out) && this.#memory.isDense(x))
      this.#memory.receive(out, this.#memory.message(x));
    else if (!hasSameShape || !this.#copyPermuted(out, x))
      this.#memory.write(out, hasSameShape ? this.#memory.read(x).entries : []);
  }

  /** Copies through views whose axes are in some other order, as when a message is packed. */
  #copyPermuted(out: number, x: number): boolean {
    for (const order of axisPermutations) {
      const { isComplete, entries } = this.#memory.readPermuted(x, order);
      if (isComplete) this.#memory.writePermuted(out, order, entries);
      if (isComplete) return true;
    }
    return false;
  }

  fill(event: TapeReader): void {
    const out = event.arg(0);
    this.#memory.writeSingleRegion(out, encodeValue("fill", event.arg(1)), this.#placeholderRows);
  }

  rowDot(event: TapeReader): void {
    const entries: ContentEntry[] = [];
    const { initialValues } = this.#context;
    const [a, b] = [this.#memory.read(event.arg(1)), this.#memory.read(event.arg(2))];
    const columns = this.#memory.view(event.arg(1)).layout.box.sizes[3];
    for (const [x, y] of intersectEntries(a, b, true)) {
      const sum = decodeSum(y.value, "out", initialValues);
      if (x.value !== encodeValue("dOut") || sum === undefined || x.sizes[3] !== columns) continue;
      if (sum !== EMPTY_SUM && !haveEqualRows(x.rows, y.rows)) continue;
      const value = sum === EMPTY_SUM ? y.value : encodeValue("delta", sum);
      entries.push({ value, rows: y.rows, origin: x.origin.with(3, 0), sizes: x.sizes.with(3, 1) });
    }
    this.#memory.write(event.arg(0), entries);
  }

  /** Adds a tile to all rows of an accumulator. A part that holds the initial value receives its rows here. */
  #accumulate(tile: number, view: number, name: SumName, expected: Rows): void {
    const { sums, initialValues } = this.#context;
    const region = this.#memory.singleRegion(view);
    const sum = region ? decodeSum(region.value, name, initialValues) : undefined;
    const { tilesByKvHead } = this.#operands;
    if (
      !tilesByKvHead &&
      region &&
      sum !== undefined &&
      (region.rows === expected || isFill(region.value) || hasExpectedRows(region, expected))
    ) {
      this.#memory.writeSingleRegion(view, encodeValue(name, sums.add(sum, tile)), expected);
      return;
    }
    const readResult = this.#memory.read(view);
    const mismatch = readResult.isComplete
      ? readResult.entries
          .map((entry) => this.#describeMismatch(entry, name, expected))
          .find((text) => text !== undefined)
      : `${name} is not fully initialized`;
    if (mismatch) {
      this.#operands.reportViolation("data", `${this.#operands.description}: ${mismatch}`);
      return;
    }
    const addTileTo = (entry: ContentEntry, addedTile: number): ContentEntry => {
      const value = encodeValue(name, sums.add(decodeSum(entry.value, name, initialValues)!, addedTile));
      return { ...toEntry(entry), value, rows: isFill(entry.value) ? shiftExpectedRows(entry, expected) : entry.rows };
    };
    const headsPerTile = resultSides[name] === "keys" ? 1 : this.#operands.headsPerKvHead;
    const entries = tilesByKvHead
      ? tilesByKvHead.flatMap((part, i) =>
          readResult.entries.flatMap((entry) =>
            selectHeads(entry, i * headsPerTile, headsPerTile).map((each) => addTileTo(each, part)),
          ),
        )
      : readResult.entries.map((entry) => addTileTo(entry, tile));
    this.#memory.write(view, entries);
  }

  /** Describes what is wrong with part of an accumulator, if anything. */
  #describeMismatch(entry: ContentEntry, name: SumName, expected: Rows): string | undefined {
    const { initialValues, record } = this.#context;
    if (decodeSum(entry.value, name, initialValues) === undefined)
      return `${name} holds ${describeValue(entry.value, record.interned)}`;
    if (isFill(entry.value) || hasExpectedRows(entry, expected)) return undefined;
    return `${name}: expected rows ${formatPositions(expected.positions.spans)} of the query block, received rows ${formatPositions(entry.rows.positions.spans)}, or those of another sample or head`;
  }

  /** Checks that out and lse were computed over the same keys. */
  #checkOutMatchesLse(out: number, lse: number): void {
    const { sums } = this.#context;
    const [outRegion, lseRegion] = [this.#memory.singleRegion(out), this.#memory.singleRegion(lse)];
    if (outRegion && lseRegion) {
      if (sums.areEqualSums(decodePayload(outRegion.value), decodePayload(lseRegion.value))) return;
    } else {
      let areConsistent = true;
      for (const [a, b] of intersectEntries(this.#memory.read(out), this.#memory.read(lse), false)) {
        areConsistent &&= sums.areEqualSums(decodePayload(a.value), decodePayload(b.value));
      }
      if (areConsistent) return;
    }
    this.#operands.reportViolation(
      "data",
      `${this.#operands.description}: out and lse were computed over different keys`,
    );
  }

  /** Checks that lse covers all keys and that delta belongs to it. */
  #checkStatistics(lse: number, delta: number, queries: Rows): boolean {
    const [lseRegion, deltaRegion] = [this.#memory.singleRegion(lse), this.#memory.singleRegion(delta)];
    if (lseRegion && deltaRegion && lseRegion.rows === queries && deltaRegion.rows === queries) {
      const [lseSum, deltaSum] = [decodePayload(lseRegion.value), decodePayload(deltaRegion.value)];
      if (
        decodeKind(lseRegion.value) === "lse" &&
        isDelta(deltaRegion.value) &&
        this.#context.sums.areEqualSums(lseSum, deltaSum)
      ) {
        this.#checkComplete(lseSum, queries.positions);
        return true;
      }
    }
    const statistics = [queries, lse, delta, this.#memory.content(lse), this.#memory.content(delta)];
    if (statistics.every((each, i) => each === this.#lastStatistics[i])) return true;
    const [a, b] = [this.#memory.read(lse), this.#memory.read(delta)];
    let mismatch = a.isComplete && b.isComplete ? undefined : "lse or delta is not fully initialized";
    for (const [x, y] of intersectEntries(a, b, false)) mismatch ??= this.#statisticsMismatch(x, y, queries);
    if (mismatch) this.#operands.reportViolation("data", `${this.#operands.description}: ${mismatch}`);
    else this.#lastStatistics = statistics;
    return mismatch === undefined;
  }

  #statisticsMismatch(lse: ContentEntry, delta: ContentEntry, queries: Rows): string | undefined {
    const { initialValues, record, sums } = this.#context;
    if (initialValues.isInitial(lse.value, "lse") && initialValues.isInitial(delta.value, "out")) {
      this.#checkComplete(EMPTY_SUM, queries.positions.subset(lse.origin[2]!, lse.sizes[2]!));
      return undefined;
    }
    if (decodeKind(lse.value) !== "lse" || !isDelta(delta.value)) {
      return `lse holds ${describeValue(lse.value, record.interned)}, delta holds ${describeValue(delta.value, record.interned)}`;
    }
    if (!hasExpectedRows(lse, queries) || !hasExpectedRows(delta, queries))
      return "lse or delta belongs to different queries";
    if (!sums.areEqualSums(decodePayload(lse.value), decodePayload(delta.value)))
      return "delta and lse belong to different outputs";
    this.#checkComplete(decodePayload(lse.value), lse.rows.positions);
    return undefined;
  }

  /**
   * Reports, once per sum, that an lse is used that does not cover all keys. Its backward may be correct nonetheless.
   */
  #checkComplete(sum: number, rows: PositionList): void {
    if (sum === this.#lastCompleteSum.sum && rows === this.#lastCompleteSum.rows) return;
    const verdict = this.#context.completeness.evaluateSum(sum, "queries", rows) ?? evaluateSinks(this.#context, sum);
    if (!verdict) this.#lastCompleteSum = { sum, rows };
    if (!verdict || this.#reportedPartialSums.has(sum)) return;
    this.#reportedPartialSums.add(sum);
    this.#operands.reportViolation(verdict.kind, `${this.#operands.description}, lse: ${verdict.message}`);
  }

  /**
   * Writes the combination of two views, box by box. Returns false, without writing, if they do not belong together.
   */
  #combine(out: number, [a, b]: readonly [number, number], mode: CombineMode): boolean {
    if (mode === "add" && this.#addDense(out, a, b)) return true;
    const [regionA, regionB] = [this.#memory.singleRegion(a), this.#memory.singleRegion(b)];
    if (regionA && regionB) {
      const combinedEntry = combine(regionA, regionB, mode, this.#context);
      if (combinedEntry) this.#memory.writeSingleRegion(out, combinedEntry.value, combinedEntry.rows);
      return combinedEntry !== undefined;
    }
    for (const order of axisPermutations) {
      const [x, y] = [this.#memory.readPermuted(a, order), this.#memory.readPermuted(b, order)];
      if (!x.isComplete || !y.isComplete) continue;
      const entries: ContentEntry[] = [];
      for (const [p, q] of intersectEntries(x, y, true)) {
        const combinedEntry = combine(p, q, mode, this.#context);
        if (!combinedEntry) return false;
        entries.push({ value: combinedEntry.value, rows: combinedEntry.rows, origin: p.origin, sizes: p.sizes });
      }
      this.#memory.writePermuted(out, order, entries);
      return true;
    }
    return false;
  }

  /**
   * Adds dense views in the way that messages are summed, because rows of a cast have fewer axes than attention.
   * Returns false, without writing, if the sum is not fully known.
   */
  #addDense(out: number, a: number, b: number): boolean {
    const memory = this.#memory;
    if (!memory.isDense(out) || !memory.isDense(a) || !memory.isDense(b)) return false;
    const sum = reduceMessages([memory.message(a), memory.message(b)], this.#context);
    if (countElements(sum) < memory.size(a)) return false;
    memory.receive(out, sum);
    return true;
  }
}

/** Returns the number of known elements. */
function countElements({ regions }: Content): number {
  let size = 0;
  for (const { box } of regions) size += volume(box.sizes);
  return size;
}

/** Returns the part of an entry that belongs to some heads of the view. */
function selectHeads(entry: ContentEntry, first: number, count: number): ContentEntry[] {
  const firstHead = Math.max(first, entry.origin[1]!);
  const end = Math.min(first + count, entry.origin[1]! + entry.sizes[1]!);
  if (firstHead >= end) return [];
  const sizes = entry.sizes.with(1, end - firstHead);
  const offset = origin.with(1, firstHead - entry.origin[1]!);
  return [
    { value: entry.value, rows: shiftRows(entry, offset, sizes), origin: entry.origin.with(1, firstHead), sizes },
  ];
}

function toEntry({ value, rows, origin, sizes }: ContentEntry): ContentEntry {
  return { value, rows, origin, sizes };
}
