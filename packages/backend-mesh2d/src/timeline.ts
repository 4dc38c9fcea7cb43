/** What the moves and blocks of a tile cost, in any one unit of time. */
export interface Costs {
  /** A chunk of queries, or of keys and values, that comes in. */
  readonly q: number;
  readonly kv: number;
  /** A row's sums that leave (out, or dq), and a column's (dk and dv). */
  readonly out: number;
  readonly dkv: number;
  /** One block: a chunk of queries on a chunk of keys. */
  readonly block: number;
}

/** A tile of so many chunks of queries by so many of keys. */
export interface ScheduleOptions {
  readonly queries: number;
  readonly keys: number;
  /** Whether sums go back to the keys too, as in backward. */
  readonly backward: boolean;
  /** Moves under way at a time: 1, or 2, one along the row and one along the column. */
  readonly channels: 1 | 2;
  readonly costs: Costs;
}

/** A transfer that all ranks make at once: chunk `offset` of queries or of keys comes in, or sums over it leave. */
export interface ChunkTransfer {
  readonly kind: "q" | "kv" | "out" | "dkv";
  /** Which row or column of the tile, ≥ 1. */
  readonly offset: number;
}

/** Row x of the tile on its column y. */
export interface Block {
  readonly kind: "block";
  readonly x: number;
  readonly y: number;
}

/** What to prefer where there is a choice. */
export interface SchedulingRule {
  /** Whether a channel is first for sums that are complete, or for chunks that unlock blocks. */
  readonly first: "sums" | "chunks";
  /** Blocks row by row, column by column, or peeled: a row and a column in turn. */
  readonly blocks: "rows" | "columns" | "peeled";
  /** One move at a time, one along either dimension, or as many along one as fit beside one along the other. */
  readonly batches: "single" | "paired" | "filled";
  /** The order in which chunks come in; what unlocks most blocks for its cost goes first, if absent. */
  readonly chunks?: readonly ("q" | "kv")[];
}

/** Moves that are made in one batch: they begin together and are complete together. */
export interface Batch {
  readonly kind: "batch";
  readonly chunkTransfers: readonly ChunkTransfer[];
}

export interface Timeline {
  readonly batches: readonly Batch[];
  readonly blocks: readonly Block[];
  readonly makespan: number;
}

/** How long moves take that are made at once: one after the other on one channel, side by side on two. */
export function batchTime(chunkTransfers: readonly ChunkTransfer[], { costs, channels }: ScheduleOptions): number {
  const sumCosts = (kinds: readonly ChunkTransfer["kind"][]) =>
    chunkTransfers.reduce((sum, { kind }) => (kinds.includes(kind) ? sum + costs[kind] : sum), 0);
  const [rowTime, columnTime] = [sumCosts(rowKinds), sumCosts(columnKinds)];
  return channels === 1 ? rowTime + columnTime : Math.max(rowTime, columnTime);
}

/** The timeline of a tile when one batch and one block are under way at a time, and both are begun as soon as can be. */
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
    // Sums of many costs: what ends at the same time may differ in the last bit.
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

/** The moves along the rows of the grid, and those along its columns. */
export const rowKinds: readonly ChunkTransfer["kind"][] = ["q", "out"];
const columnKinds: readonly ChunkTransfer["kind"][] = ["kv", "dkv"];
const allKinds: readonly ChunkTransfer["kind"][] = [...rowKinds, ...columnKinds];

function isReduction(kind: ChunkTransfer["kind"]): kind is "out" | "dkv" {
  return kind === "out" || kind === "dkv";
}

/** Moves along one dimension that one batch makes. */
interface AxisBatch {
  readonly kinds: readonly ChunkTransfer["kind"][];
  readonly chunkTransfers: ChunkTransfer[];
  cost: number;
}

/** How far a tile has come: moves begun and arrived by kind, and blocks done. */
class TileProgress {
  readonly #options: ScheduleOptions;
  readonly #rule: SchedulingRule;
  /** The offset of the next move of each kind. */
  readonly #nextOffsetByKind: Record<ChunkTransfer["kind"], number> = { q: 1, kv: 1, out: 1, dkv: 1 };
  /** Rows and columns that this rank holds, the local ones included. */
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

  /** The moves to begin now, together; none if none can. */
  takeBatch(): readonly ChunkTransfer[] {
    const { batches } = this.#rule;
    const kinds = batches === "single" ? [allKinds] : [rowKinds, columnKinds];
    const axisBatches = kinds.map((each): AxisBatch => ({ kinds: each, chunkTransfers: [], cost: 0 }));
    for (const axisBatch of axisBatches) this.#tryAddTransfer(axisBatch, Infinity);
    // Beside a move along one dimension alone nothing is gained by waiting for a second.
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

  /** The kind to move first, of some; of equals the earlier. */
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
   * Of complete sums, how much is left to send of their kind; of chunks, how many blocks they unlock for what they cost.
   * Nothing of what cannot go now.
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

  /** Whether the order of chunks, if there is one, has this kind next. */
  #isRequiredNext(kind: "q" | "kv"): boolean {
    const { chunks } = this.#rule;
    return chunks === undefined || chunks[this.#nextOffsetByKind.q + this.#nextOffsetByKind.kv - 2] === kind;
  }

  /** The block to begin now, if both of its chunks are here. */
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

/** All blocks in order of preference: those of the most distant ranks first, because their sums travel furthest; local ones last. */
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
