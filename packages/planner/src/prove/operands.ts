import type { RecordedRank } from "../record.ts";
import type { TapeReader } from "../symbolic/tape.ts";
import type { Violation, ReplayContext } from "./context.ts";
import type { ContentEntry, ReadResult } from "./content.ts";
import { hasExpectedRows } from "./entries.ts";
import type { PositionList } from "./positions.ts";
import type { RankMemory } from "./rank-memory.ts";
import { type Tile, describeTile } from "./sums.ts";
import {
  decodeKind,
  describeValue,
  isFill,
  isInputRow,
  formatPositions,
  type Rows,
  type SourceName,
  encodeValue,
} from "./values.ts";

/** The rows of an input that a view holds, and the entries that hold something else. */
interface InputRows {
  readonly rows: Rows;
  readonly mismatchedEntries: readonly ContentEntry[];
}

/** The tile that one rank computes. Checks that memory holds the queries and keys that its operands name. */
export class AttentionOperands implements Tile {
  readonly rank: number;
  phase = "";
  /** Number of the last tile, counted from 1 in each phase. */
  tileNumber = 0;
  q!: PositionList;
  k!: PositionList;
  mask = 0;
  firstHead = 0;
  endHead = 0;
  /** Number of query heads that attend to each KV head of the kernel call. */
  headsPerKvHead = 1;
  /**
   * A tile for each KV head, if KV heads are paired with different heads of their groups; undefined if one tile
   * represents all.
   */
  tilesByKvHead: readonly number[] | undefined;
  pairs = 0;
  /** Queries and keys of the tile, as found in memory. */
  queries!: Rows;
  keys!: Rows;
  readonly #context: ReplayContext;
  readonly #memory: RankMemory;
  /** Number of columns of q and k, and of v and dOut. */
  readonly #columnsBySource: Readonly<Record<SourceName, number>>;
  /** Query heads per KV head of the attention. */
  readonly #queryHeadsPerKvHead: number;

  constructor(context: ReplayContext, { tape }: RecordedRank, memory: RankMemory) {
    const { headDim, valueHeadDim, numHeads, numKvHeads } = context.record.options;
    this.rank = tape.rank;
    this.#context = context;
    this.#memory = memory;
    this.#columnsBySource = { q: headDim, k: headDim, v: valueHeadDim, dOut: valueHeadDim };
    this.#queryHeadsPerKvHead = numHeads / numKvHeads;
  }

  /** Description of the last tile for messages. */
  get description(): string {
    return describeTile(this);
  }

  /**
   * Returns the number of the tile that a kernel call computes; −1 if no pair of it is visible, or if its operands are
   * not the rows that they are named.
   */
  loadTile(event: TapeReader, firstArgumentIndex: number, views: { readonly q: number; readonly k: number }): number {
    const { positions, visibility } = this.#context;
    const q = positions.getById(event.arg(firstArgumentIndex));
    const k = positions.getById(event.arg(firstArgumentIndex + 1));
    this.q = q;
    this.k = k;
    this.mask = event.arg(firstArgumentIndex + 2);
    this.tileNumber++;
    this.pairs = visibility.countPairs(q, k, this.mask);
    if (this.pairs === 0) return -1;
    const queries = this.readSource("q", views.q, { positions: q });
    const keys = this.readSource("k", views.k, { positions: k });
    if (!queries || !keys) return -1;
    this.queries = queries;
    this.keys = keys;
    const headsPerKvHead = this.#countHeadsPerKvHead(views);
    if (headsPerKvHead === 0) {
      const expected = `query heads in the groups of the KV heads, ${this.#queryHeadsPerKvHead} for each, of the same samples`;
      const received = `q with ${this.#describeHeads(views.q, queries)} and k with ${this.#describeHeads(views.k, keys)}`;
      this.reportViolation("data", `${this.description}: expected ${expected}, received ${received}`);
      return -1;
    }
    this.headsPerKvHead = headsPerKvHead;
    this.tilesByKvHead = undefined;
    const numKvHeads = this.#memory.view(views.k).layout.box.sizes[1]!;
    if (numKvHeads === 1 || headsPerKvHead === this.#queryHeadsPerKvHead) return this.#addTile(0);
    // The heads of the call begin within a group, so each KV head is paired with other heads of its group.
    this.tilesByKvHead = Array.from({ length: numKvHeads }, (_, head) => this.#addTile(head));
    return this.tilesByKvHead[0]!;
  }

  #describeHeads(view: number, { batch, head }: Rows): string {
    const { sizes } = this.#memory.view(view).layout.box;
    return `heads ${head} to ${head + sizes[1]! - 1} of samples ${batch} to ${batch + sizes[0]! - 1}`;
  }

  /**
   * Adds a tile for the query heads that attend to one KV head of the call. If it is the only tile, it also represents
   * the other KV heads.
   */
  #addTile(head: number): number {
    this.firstHead =
      this.queries.head + head * this.headsPerKvHead - (this.keys.head + head) * this.#queryHeadsPerKvHead;
    this.endHead = this.firstHead + this.headsPerKvHead;
    return this.#context.tiles.add(this);
  }

  /**
   * Returns the rows that a view holds if they are the expected rows of an input. Without an expected head, any heads
   * are accepted. Keys that no query of the tile attends to may be anything.
   */
  readSource(name: SourceName, view: number, expected: Pick<Rows, "positions"> & Partial<Rows>): Rows | undefined {
    const region = this.#memory.singleRegion(view);
    if (region && region.value === encodeValue(name) && region.sizes[3] === this.#columnsBySource[name]) {
      const { rows } = region;
      const hasExpectedHead =
        expected.head === undefined || (rows.head === expected.head && rows.batch === expected.batch);
      if (hasExpectedHead && rows.column === 0 && rows.positions.equals(expected.positions)) return rows;
    }
    const readResult = this.#memory.read(view);
    const inputRows = this.#findInputRows(readResult, name, expected.positions);
    if (inputRows && this.#checkSource(inputRows, name, expected)) return inputRows.rows;
    const contents =
      [...new Set(readResult.entries.map((entry) => this.#describeEntry(entry)))].join(", ") || "unknown contents";
    const rows = formatPositions(expected.positions.spans);
    // The expected rows, but of other heads or samples.
    const otherRows = inputRows?.mismatchedEntries.length === 0 ? inputRows.rows : undefined;
    const describeHeads = (headRows: Partial<Rows>): string =>
      otherRows ? ` of ${this.#describeHeads(view, { ...otherRows, ...headRows })}` : "";
    this.reportViolation(
      "data",
      `${this.description}: ${name}: expected rows ${rows}${describeHeads(expected)}, received ${contents}${describeHeads({})}`,
    );
    return undefined;
  }

  reportViolation(kind: Violation["kind"], message: string): void {
    this.#context.violations.report({ kind, rank: this.rank, message });
  }

  #checkSource(
    { rows, mismatchedEntries: mismatches }: InputRows,
    name: SourceName,
    expected: Pick<Rows, "positions"> & Partial<Rows>,
  ): boolean {
    if (expected.head !== undefined && (rows.head !== expected.head || rows.batch !== expected.batch)) return false;
    if (mismatches.length === 0) return true;
    const isVisibleEntry = ({ origin, sizes }: ContentEntry): boolean =>
      this.#context.completeness.isVisible(this.q, expected.positions.subset(origin[2]!, sizes[2]!), this.mask);
    return (name === "k" || name === "v") && !mismatches.some(isVisibleEntry);
  }

  /** Returns undefined if the view holds no row of the input, or if part of it is unknown. */
  #findInputRows(readResult: ReadResult, name: SourceName, positions: PositionList): InputRows | undefined {
    const { cachedCheck } = readResult;
    if (cachedCheck?.name === name && cachedCheck.positions === positions)
      return cachedCheck.result as InputRows | undefined;
    const value = encodeValue(name);
    const first = readResult.entries.find((entry) => entry.value === value);
    let result: InputRows | undefined;
    if (readResult.isComplete && first) {
      const { origin } = first;
      const rows = { batch: first.rows.batch - origin[0]!, head: first.rows.head - origin[1]!, column: 0, positions };
      const isMismatched = (entry: ContentEntry): boolean =>
        entry.value !== value || entry.sizes[3] !== this.#columnsBySource[name] || !hasExpectedRows(entry, rows);
      result = { rows, mismatchedEntries: readResult.entries.filter(isMismatched) };
    }
    readResult.cachedCheck = { name, positions, result };
    return result;
  }

  /**
   * Returns the number of query heads for each KV head, which are equally many and in order; 0 if some are not of its
   * group.
   */
  #countHeadsPerKvHead({ q, k }: { readonly q: number; readonly k: number }): number {
    const querySizes = this.#memory.view(q).layout.box.sizes;
    const keySizes = this.#memory.view(k).layout.box.sizes;
    const { queries, keys } = this;
    const headsPerKvHead = querySizes[1]! / keySizes[1]!;
    // Offsets in their groups of the query heads of the first and the last KV head. All other offsets are between
    // these.
    const first = queries.head - keys.head * this.#queryHeadsPerKvHead;
    const last = first + (keySizes[1]! - 1) * (headsPerKvHead - this.#queryHeadsPerKvHead);
    const areHeadsInGroups =
      Math.min(first, last) >= 0 && Math.max(first, last) + headsPerKvHead <= this.#queryHeadsPerKvHead;
    return areHeadsInGroups &&
      Number.isInteger(headsPerKvHead) &&
      queries.batch === keys.batch &&
      querySizes[0] === keySizes[0]
      ? headsPerKvHead
      : 0;
  }

  #describeEntry({ value, rows, sizes }: ContentEntry): string {
    const { interned } = this.#context.record;
    if (isFill(value)) return describeValue(value, interned);
    const { column, positions } = rows;
    const end = column + sizes[3]!;
    const hasAllColumns = !isInputRow(value) || sizes[3] === this.#columnsBySource[decodeKind(value) as SourceName];
    const columns = hasAllColumns ? "" : ` (columns ${column} to ${end - 1})`;
    return `${describeValue(value, interned)} ${formatPositions(positions.spans)}${columns}`;
  }
}
