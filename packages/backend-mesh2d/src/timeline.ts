/** Costs of the transfers and blocks of a tile, in any common unit of time. */
export interface Costs {
  /** Receiving a chunk of queries (`q`), or of keys and values (`kv`). */
  readonly q: number;
  readonly kv: number;
  /** Sending the sums of a row (`out`: out, or dq), or of a column (`dkv`: dk and dv). */
  readonly out: number;
  readonly dkv: number;
  /** Computing one block: a chunk of queries on a chunk of keys. */
  readonly block: number;
}

/** The tile to schedule: `queries` chunks of queries by `keys` chunks of keys. */
export interface ScheduleOptions {
  readonly queries: number;
  readonly keys: number;
  /** Whether sums over keys are also returned, as in backward. */
  readonly backward: boolean;
  /** Number of transfers in flight at a time: 1, or 2 (one along the row and one along the column). */
  readonly channels: 1 | 2;
  readonly costs: Costs;
}

/**
 * A transfer that all ranks make at the same time: chunk `offset` of queries or keys is received, or its sums are sent.
 */
export interface ChunkTransfer {
  readonly kind: "q" | "kv" | "out" | "dkv";
  /** Row or column of the tile, ≥ 1. */
  readonly offset: number;
}

/** The block in row x and column y of the tile. */
export interface Block {
  readonly kind: "block";
  readonly x: number;
  readonly y: number;
}

/** The preferences of a greedy schedule. */
export interface SchedulingRule {
  /** Whether a free channel first sends complete sums, or first receives chunks that unlock blocks. */
  readonly first: "sums" | "chunks";
  /** The order of blocks: row by row, column by column, or peeled (a row and a column alternately). */
  readonly blocks: "rows" | "columns" | "peeled";
  /**
   * The transfers of a batch: one ("single"), one along each dimension ("paired"), or additionally as many along one
   * dimension as fit in the time of one along the other ("filled").
   */
  readonly batches: "single" | "paired" | "filled";
  /**
   * The order in which chunks are received. If absent, the chunk that unlocks the most blocks for its cost is first.
   */
  readonly chunks?: readonly ("q" | "kv")[];
}

/** Transfers that start together and complete together. */
export interface Batch {
  readonly kind: "batch";
  readonly chunkTransfers: readonly ChunkTransfer[];
}

export interface Timeline {
  readonly batches: readonly Batch[];
  readonly blocks: readonly Block[];
  readonly makespan: number;
}

/**
 * Returns the duration of a batch. Its transfers are sequential on one channel; rows and columns are concurrent on two.
 */
export function batchTime(chunkTransfers: readonly ChunkTransfer[], { costs, channels }: ScheduleOptions): number {
  const sumCosts = (kinds: readonly ChunkTransfer["kind"][]) =>
    chunkTransfers.reduce((sum, { kind }) => (kinds.includes(kind) ? sum + costs[kind] : sum), 0);
  const [rowTime, columnTime] = [sumCosts(rowKinds), sumCosts(columnKinds)];
  return channels === 1 ? rowTime + columnTime : Math.max(rowTime, columnTime);
}

/** Simulates a tile with one batch and one block in progress at a time, each started as early as possible. */
export function simulateSchedule(options: ScheduleOptions, rule: SchedulingRule): Timeline {
  const progress = new TileProgress(options, rule);
  const batches: Batch[] = [];
  const blocks: Block[] = [];
  let time = 0;
  let batch: { readonly item: Batch; readonly end: number } | undefined;
  let block: { readonly item: Block; readonly end: number } | undefined;
  for (;;) {
    if (!batch) {
      const chunkTransfers = progress.takeBatch();
      if (chunkTransfers.length > 0) {
        const item = { kind: "batch", chunkTransfers } as const;
        batches.push(item);
        batch = { item, end: time + batchTime(chunkTransfers, options) };
      }
    }
    if (!block) {
      const item = progress.takeBlock();
      if (item) {
        blocks.push(item);
        block = { item, end: time + options.costs.block };
      }
    }
    if (!batch && !block) return { batches, blocks, makespan: time };
    time = Math.min(batch?.end ?? Infinity, block?.end ?? Infinity);
    // Times are sums of many costs, so events at the same time may differ in the last bit.
    const maxEndTime = time * (1 + 1e-12);
    if (batch && batch.end <= maxEndTime) {
      for (const chunkTransfer of batch.item.chunkTransfers) progress.complete(chunkTransfer);
      batch = undefined;
    }
    if (block && block.end <= maxEndTime) {
      progress.complete(block.item);
      block = undefined;
    }
  }
}

/** The transfers along the rows of the grid, and those along its columns. */
export const rowKinds: readonly ChunkTransfer["kind"][] = ["q", "out"];
const columnKinds: readonly ChunkTransfer["kind"][] = ["kv", "dkv"];
const allKinds: readonly ChunkTransfer["kind"][] = [...rowKinds, ...columnKinds];

function isReduction(kind: ChunkTransfer["kind"]): kind is "out" | "dkv" {
  return kind === "out" || kind === "dkv";
}

/** The transfers of one batch along one dimension. */
interface AxisBatch {
  readonly kinds: readonly ChunkTransfer["kind"][];
  readonly chunkTransfers: ChunkTransfer[];
  cost: number;
}

/** The progress of a tile: transfers started and completed by kind, and blocks completed. */
class TileProgress {
  readonly #options: ScheduleOptions;
  readonly #rule: SchedulingRule;
  /** The offset of the next transfer of each kind. */
  readonly #nextOffsetByKind: Record<ChunkTransfer["kind"], number> = { q: 1, kv: 1, out: 1, dkv: 1 };
  /** Number of rows and columns of the tile that this rank holds, including the local ones. */
  #numHeldRows = 1;
  #numHeldColumns = 1;
  readonly #remainingBlocks: Block[];
  readonly #numCompletedByRow: number[];
  readonly #numCompletedByColumn: number[];

  constructor(options: ScheduleOptions, rule: SchedulingRule) {
    this.#options = options;
    this.#rule = rule;
    this.#remainingBlocks = sortBlocks(options, rule);
    this.#numCompletedByRow = new Array<number>(options.queries).fill(0);
    this.#numCompletedByColumn = new Array<number>(options.keys).fill(0);
  }

  /** Returns the transfers to start together now; empty if none can start. */
  takeBatch(): readonly ChunkTransfer[] {
    const { batches } = this.#rule;
    const kinds = batches === "single" ? [allKinds] : [rowKinds, columnKinds];
    const axisBatches = kinds.map((each): AxisBatch => ({ kinds: each, chunkTransfers: [], cost: 0 }));
    for (const axisBatch of axisBatches) this.#tryAddTransfer(axisBatch, Infinity);
    // If transfers are possible along one dimension only, filling the batch gains nothing.
    if (batches === "filled" && axisBatches.every(({ cost }) => cost > 0)) {
      const costLimit = Math.max(...axisBatches.map(({ cost }) => cost)) * (1 + 1e-9);
      for (const axisBatch of axisBatches) while (this.#tryAddTransfer(axisBatch, costLimit));
    }
    return axisBatches.flatMap(({ chunkTransfers }) => chunkTransfers);
  }

  #tryAddTransfer(axisBatch: AxisBatch, costLimit: number): boolean {
    const kind = this.#selectKind(axisBatch.kinds);
    if (kind === undefined || axisBatch.cost + this.#options.costs[kind] > costLimit) return false;
    axisBatch.chunkTransfers.push({ kind, offset: this.#nextOffsetByKind[kind]++ });
    axisBatch.cost += this.#options.costs[kind];
    return true;
  }

  /** Returns the kind of transfer to start first; among equals, the earlier one in `kinds`. */
  #selectKind(kinds: readonly ChunkTransfer["kind"][]): ChunkTransfer["kind"] | undefined {
    const sums = kinds.filter(isReduction);
    const chunks = kinds.filter((kind) => !isReduction(kind));
    const [preferredKinds, otherKinds] = this.#rule.first === "sums" ? [sums, chunks] : [chunks, sums];
    return this.#highestPriority(preferredKinds) ?? this.#highestPriority(otherKinds);
  }

  #highestPriority(kinds: readonly ChunkTransfer["kind"][]): ChunkTransfer["kind"] | undefined {
    let bestKind: ChunkTransfer["kind"] | undefined;
    let maxPriority = -Infinity;
    for (const kind of kinds) {
      const priority = this.#priority(kind);
      if (priority === undefined || priority <= maxPriority) continue;
      bestKind = kind;
      maxPriority = priority;
    }
    return bestKind;
  }

  /**
   * Returns the priority of the next transfer of a kind: for complete sums, the remaining cost of their kind; for
   * chunks, the number of unlocked blocks per cost. Returns undefined if the transfer cannot start now.
   */
  #priority(kind: ChunkTransfer["kind"]): number | undefined {
    const { queries, keys, backward, costs } = this.#options;
    const nextOffset = this.#nextOffsetByKind[kind];
    switch (kind) {
      case "out":
        return nextOffset < queries && this.#numCompletedByRow[nextOffset] === keys
          ? (queries - nextOffset) * costs.out
          : undefined;
      case "dkv":
        return backward && nextOffset < keys && this.#numCompletedByColumn[nextOffset] === queries
          ? (keys - nextOffset) * costs.dkv
          : undefined;
      case "q":
        return nextOffset < queries && this.#isRequiredNext(kind) ? this.#numHeldColumns / costs.q : undefined;
      default:
        return nextOffset < keys && this.#isRequiredNext(kind) ? this.#numHeldRows / costs.kv : undefined;
    }
  }

  /** Returns whether the rule's order of chunks, if any, has this kind next. */
  #isRequiredNext(kind: "q" | "kv"): boolean {
    const { chunks } = this.#rule;
    return chunks === undefined || chunks[this.#nextOffsetByKind.q + this.#nextOffsetByKind.kv - 2] === kind;
  }

  /** Returns the most preferred remaining block whose chunks are both held; undefined if there is none. */
  takeBlock(): Block | undefined {
    const index = this.#remainingBlocks.findIndex(({ x, y }) => x < this.#numHeldRows && y < this.#numHeldColumns);
    return index < 0 ? undefined : this.#remainingBlocks.splice(index, 1)[0];
  }

  complete(completed: ChunkTransfer | Block): void {
    if (completed.kind === "q") this.#numHeldRows++;
    else if (completed.kind === "kv") this.#numHeldColumns++;
    else if (completed.kind === "block") {
      this.#numCompletedByRow[completed.x]!++;
      this.#numCompletedByColumn[completed.y]!++;
    }
  }
}

/**
 * Returns all blocks in order of preference: offsets in ascending order, local ones (0) last because their sums stay.
 */
function sortBlocks({ queries, keys }: ScheduleOptions, rule: SchedulingRule): Block[] {
  const rotatedIndex = (offset: number, length: number) => (offset + length - 1) % length;
  const sortedBlocks = Array.from({ length: queries * keys }, (_, i) => {
    const [x, y] = [Math.floor(i / keys), i % keys];
    return { x, y, key: sortKey(rule, { u: rotatedIndex(x, queries) / queries, v: rotatedIndex(y, keys) / keys }) };
  }).toSorted((a, b) => a.key[0] - b.key[0] || a.key[1] - b.key[1]);
  return sortedBlocks.map(({ x, y }) => ({ kind: "block", x, y }));
}

function sortKey({ blocks }: SchedulingRule, { u, v }: { u: number; v: number }): readonly [number, number] {
  if (blocks === "peeled") return [Math.min(u, v), Math.max(u, v)];
  return blocks === "rows" ? [u, v] : [v, u];
}
