import type { RecordedRank } from "../record.ts";
import type { TapeReader } from "../symbolic/tape.ts";
import type { ContentEntry } from "./content.ts";
import type { ReplayContext, Verdict, VerifierContext } from "./context.ts";
import { hasExpectedRows, shiftExpectedRows, decodeSum } from "./entries.ts";
import type { AttentionOperands } from "./operands.ts";
import type { PositionTable } from "./positions.ts";
import type { RankMemory } from "./rank-memory.ts";
import { decodeKind, encodeValue, isFill, type Rows } from "./values.ts";

// A sink is a key that every query attends to, in addition to those of the mask. In the sums of a state it counts as
// one more tile, which has no keys.

/** Writes a rank's sinks if its call has them; −1 is no view. */
export function writeSinks(memory: RankMemory, view: number, table: PositionTable): void {
  if (view < 0) return;
  memory.writeSingleRegion(view, encodeValue("sink"), { batch: 0, head: 0, column: 0, positions: table.fromSpans([]) });
}

/** Checks that a sum of a state contains the sinks of its call once. */
export function evaluateSinks({ record, sums, tiles, positions }: VerifierContext, sum: number): Verdict {
  if (!record.options.sinks) return undefined;
  const numContributions = sums
    .listAddends(sum)
    .filter(({ tile }) => positions.getById(tiles.keysIdOf(tile)).length === 0).length;
  if (numContributions === 1) return undefined;
  return {
    kind: numContributions === 0 ? "missing" : "duplicate",
    message: `attention sinks: expected one contribution per head, received ${numContributions}`,
  };
}

/** Replays the use of a rank's sinks, which are copied to every row and merged as a state without values. */
export class SinkReplay {
  readonly #context: ReplayContext;
  readonly #memory: RankMemory;
  readonly #view: number;
  /** The rank's own queries. */
  readonly #rows: Rows;

  constructor(context: ReplayContext, { at, firstSequence, tensorViews }: RecordedRank, memory: RankMemory) {
    const { positions, record } = context;
    this.#context = context;
    this.#memory = memory;
    this.#view = tensorViews.sinks;
    const ownPositions = positions.fromSpans(record.queries.spans(at));
    this.#rows = { batch: firstSequence, head: 0, column: 0, positions: ownPositions };
  }

  /** Replays a copy of the sinks to all rows of their heads. Returns false, without writing, for any other copy. */
  copy(out: number, x: number): boolean {
    if (this.#view < 0 || this.#memory.storageOf(x) !== this.#memory.storageOf(this.#view)) return false;
    const { numHeads } = this.#context.record.options;
    const sourceLayout = this.#memory.view(x).layout;
    const { sizes } = this.#memory.view(out).layout.box;
    const isSinkColumn =
      sourceLayout.shape.length === 3 && sourceLayout.shape[1] === numHeads && sourceLayout.strides[1] === 1;
    const sinks = this.#memory.singleRegion(this.#view);
    if (!isSinkColumn || sourceLayout.size !== numHeads || sizes[1] !== numHeads || !sinks) return false;
    this.#memory.writeSingleRegion(out, sinks.value, sinks.rows);
    return true;
  }

  /**
   * into ← merge of into and the state of the sinks. Returns false, without writing, if the other state is not theirs.
   */
  merge(event: TapeReader, location: Pick<AttentionOperands, "rank" | "phase" | "tileNumber">): boolean {
    if (this.#view < 0 || !this.#isSinkState(event.arg(2), event.arg(3))) return false;
    const [out, lse] = [this.#readStateEntries(event.arg(0), "out"), this.#readStateEntries(event.arg(1), "lse")];
    if (!out || !lse) return false;
    const { positions, record, tiles } = this.#context;
    const { numHeads, numKvHeads } = record.options;
    const heads = { firstHead: 0, endHead: numHeads / numKvHeads };
    const mask = record.interned.maskId(record.slices);
    const { rank, phase, tileNumber } = location;
    const tileFields = { q: this.#rows.positions, k: positions.fromSpans([]), mask, pairs: 0 };
    const tile = tiles.add({ rank, phase, tileNumber, ...tileFields, ...heads });
    this.#memory.write(event.arg(0), this.#addTile(out, "out", tile));
    this.#memory.write(event.arg(1), this.#addTile(lse, "lse", tile));
    return true;
  }

  #isSinkState(out: number, lse: number): boolean {
    const [values, logits] = [this.#memory.read(out), this.#memory.singleRegion(lse)];
    const areZero =
      values.isComplete && values.entries.every(({ value }) => this.#context.initialValues.isInitial(value, "out"));
    return areZero && logits !== undefined && decodeKind(logits.value) === "sink";
  }

  /** Returns the contents of a view if they are a state of the rank's own queries. */
  #readStateEntries(view: number, name: "out" | "lse"): readonly ContentEntry[] | undefined {
    const { isComplete, entries } = this.#memory.read(view);
    const isStateEntry = (entry: ContentEntry): boolean =>
      decodeSum(entry.value, name, this.#context.initialValues) !== undefined &&
      (isFill(entry.value) || hasExpectedRows(entry, this.#rows));
    return isComplete && entries.every(isStateEntry) ? entries : undefined;
  }

  #addTile(entries: readonly ContentEntry[], name: "out" | "lse", tile: number): ContentEntry[] {
    const { sums, initialValues } = this.#context;
    return entries.map((entry) => {
      const sum = sums.add(decodeSum(entry.value, name, initialValues)!, tile);
      const rows = isFill(entry.value) ? shiftExpectedRows(entry, this.#rows) : entry.rows;
      return { value: encodeValue(name, sum), rows, origin: entry.origin, sizes: entry.sizes };
    });
  }
}
