import type { ProcessGroup, Tensor, Transfer } from "@mosaic/core";
import {
  type Chunk,
  ChunkBuffers,
  type ChunkSpec,
  type DependencyTable,
  recvTransfers,
  sendTransfers,
} from "@mosaic/core/context-parallel";

/** `count` consecutive heads, starting at `first`. */
export interface HeadRange {
  readonly first: number;
  readonly count: number;
}

/** Query heads, and the KV heads that they attend to. */
export interface HeadShard {
  readonly queries: HeadRange;
  readonly keys: HeadRange;
}

/** Total numbers of heads. `numHeads` is a multiple of `numKvHeads`. */
interface HeadCounts {
  readonly numHeads: number;
  readonly numKvHeads: number;
}

/**
 * The distribution of a sequence over the ranks of an axis: before an exchange, each rank has some rows of all heads;
 * after it, all rows of some heads.
 */
export interface ShardSizes {
  /** The number of rows of each rank. */
  readonly rows: readonly number[];
  /** The heads of each rank. A head may belong to several ranks. */
  readonly heads: readonly HeadRange[];
}

/** Computes the distribution of queries, and of keys and values, over the ranks of a sequence-parallel group. */
export function computeShardSizes(
  dependencies: DependencyTable,
  counts: HeadCounts,
): Record<keyof HeadShard, ShardSizes> {
  const { size, queryRows, keyRows } = dependencies;
  const shards = computeHeadShards(counts, size);
  return {
    queries: { rows: shards.map((_, rank) => queryRows(rank)), heads: shards.map(({ queries }) => queries) },
    keys: { rows: shards.map((_, rank) => keyRows(rank)), heads: shards.map(({ keys }) => keys) },
  };
}

/**
 * Computes the heads of each rank: consecutive query heads, distributed as evenly as possible (the first numHeads %
 * size ranks have one more; with fewer heads than ranks, the last ranks have none), and the KV heads that they attend
 * to. A KV head may belong to several ranks.
 */
export function computeHeadShards({ numHeads, numKvHeads }: HeadCounts, size: number): HeadShard[] {
  const queriesPerKvHead = numHeads / numKvHeads;
  const baseHeadCount = Math.floor(numHeads / size);
  const remainder = numHeads % size;
  return Array.from({ length: size }, (_, rank) => {
    const first = rank * baseHeadCount + Math.min(rank, remainder);
    const count = baseHeadCount + (rank < remainder ? 1 : 0);
    if (count === 0) return { queries: { first: 0, count }, keys: { first: 0, count } };
    const firstKvHead = Math.floor(first / queriesPerKvHead);
    const end = Math.floor((first + count - 1) / queriesPerKvHead) + 1;
    return { queries: { first, count }, keys: { first: firstKvHead, count: end - firstKvHead } };
  });
}

/**
 * Splits the heads of a rank into parts in each of which all KV heads have the same number of query heads, as kernels
 * require. Head indices are relative to the first head of the rank. With four query heads per KV head, query heads 3 to
 * 9 are split into 3, 4 to 7, and 8 to 9.
 */
export function groupedQueryParts({ numHeads, numKvHeads }: HeadCounts, { queries, keys }: HeadShard): HeadShard[] {
  const queriesPerKvHead = numHeads / numKvHeads;
  const parts: HeadShard[] = [];
  for (let key = 0; key < keys.count; key++) {
    const begin = Math.max(0, (keys.first + key) * queriesPerKvHead - queries.first);
    const end = Math.min(queries.count, (keys.first + key + 1) * queriesPerKvHead - queries.first);
    const lastPart = parts.at(-1);
    if (lastPart && lastPart.queries.count === (end - begin) * lastPart.keys.count)
      parts[parts.length - 1] = extendByKvHead(lastPart, end);
    else parts.push({ queries: { first: begin, count: end - begin }, keys: { first: key, count: 1 } });
  }
  return parts;
}

/** Returns a part extended by one KV head and the query heads before `end`. */
function extendByKvHead({ queries, keys }: HeadShard, end: number): HeadShard {
  return {
    queries: { first: queries.first, count: end - queries.first },
    keys: { first: keys.first, count: keys.count + 1 },
  };
}

/** This rank's rows of some heads, received from the rank that computed these heads. */
export interface HeadChunk {
  readonly heads: HeadRange;
  readonly tensors: readonly Tensor[];
}

/**
 * One exchange of rows for heads, or of heads for rows, among the ranks of a group. The transfers are declared chunk by
 * chunk and run as one batch of messages. Rows are the outermost dimension of chunks in memory, so that the rows of one
 * rank are contiguous and can be sent and received in place. Empty messages are not sent. Data that a rank keeps is
 * copied locally.
 */
export class AllToAll implements Disposable {
  readonly #group: ProcessGroup;
  readonly #label: string;
  readonly #buffers: ChunkBuffers;
  readonly #transfers: Transfer[] = [];
  readonly #localCopies: { readonly source: readonly Tensor[]; readonly target: Chunk }[] = [];

  constructor(group: ProcessGroup, label: string) {
    this.#group = group;
    this.#label = label;
    this.#buffers = new ChunkBuffers({ device: group.device, order: "sbhd" });
  }

  /**
   * Declares the exchange of rows for heads: sends to every rank its heads of this rank's rows [B,H,S,…]. Returns a
   * chunk allocated from `buffers` that `run` fills with all rows of this rank's heads, [B,h,ΣS,…].
   */
  exchangeRowsForHeads(tensors: readonly Tensor[], { rows, heads }: ShardSizes, buffers: ChunkBuffers): Chunk {
    const { rank } = this.#group;
    const gatheredChunk = buffers.empty(createHeadSpec(tensors, heads[rank]!), sum(rows));
    let firstRow = 0;
    for (const [peer, count] of rows.entries()) {
      const peerChunk = this.#buffers.narrow(gatheredChunk, firstRow, count);
      const headViews = tensors.map((x) => sliceHeads(x, heads[peer]!, this.#buffers));
      firstRow += count;
      if (peer === rank) this.#localCopies.push({ source: headViews, target: peerChunk });
      else {
        this.#enqueue(recvTransfers(peerChunk, peer));
        if (headViews[0]!.size > 0) this.#enqueue(sendTransfers(this.#buffers.copy(headViews), peer));
      }
    }
    return gatheredChunk;
  }

  /**
   * Declares the inverse exchange: sends to every rank its rows of this rank's heads [B,h,ΣS,…]. Returns the chunks
   * that this rank receives, in rank order, allocated from `buffers`.
   */
  exchangeHeadsForRows(chunk: Chunk, { rows, heads }: ShardSizes, buffers: ChunkBuffers): HeadChunk[] {
    const { rank } = this.#group;
    let firstRow = 0;
    return rows.map((count, peer) => {
      const peerChunk = buffers.narrow(chunk, firstRow, count);
      firstRow += count;
      if (peer === rank) return { heads: heads[rank]!, tensors: peerChunk.tensors };
      const incomingChunk = buffers.empty(createHeadSpec(chunk.tensors, heads[peer]!), rows[rank]!);
      this.#enqueue(sendTransfers(peerChunk, peer));
      this.#enqueue(recvTransfers(incomingChunk, peer));
      return { heads: heads[peer]!, tensors: incomingChunk.tensors };
    });
  }

  /**
   * Runs the declared transfers. Local copies overlap with the messages. Work enqueued on the device afterwards waits
   * for both.
   */
  run(): void {
    const transfers = this.#transfers;
    const work = transfers.length > 0 ? this.#group.sendRecv(transfers, { label: this.#label }) : undefined;
    for (const { source: from, target: to } of this.#localCopies) this.#buffers.copy(from, to);
    work?.wait();
  }

  #enqueue(transfers: readonly Transfer[]): void {
    for (const transfer of transfers) if (transfer.tensor.size > 0) this.#transfers.push(transfer);
  }

  [Symbol.dispose](): void {
    this.#buffers[Symbol.dispose]();
  }
}

/** Returns some heads of x [B,H,…], as a view that `buffers` owns. */
export function sliceHeads(x: Tensor, { first, count }: HeadRange, buffers: ChunkBuffers): Tensor {
  const offset = x.offset + (count > 0 ? first * x.strides[1]! : 0);
  return buffers.takeOwnership(x.view({ shape: x.shape.with(1, count), offset }));
}

function createHeadSpec(tensors: readonly Tensor[], { count }: HeadRange): ChunkSpec {
  return tensors.map(({ shape, dtype }) => ({ shape: shape.with(1, count), dtype }));
}

function sum(counts: readonly number[]): number {
  return counts.reduce((total, count) => total + count, 0);
}
