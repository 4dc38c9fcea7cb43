import type { Transfer } from "@mosaic/core";
import { type Chunk, ChunkBuffers, recvTransfers, sendTransfers } from "@mosaic/core/context-parallel";
import type { Operand, OperandChunks, Pass, PassExecutor, Tile } from "./pass.ts";
import type { TilePeers } from "./tile.ts";

// One batch gathers all rows of the tile, one kernel call computes it, and a second batch returns all sums. This is
// Attention2D's non-overlapped form: few messages and one large kernel call, but no transfer overlaps with computation.

/** An operand after its chunks have been gathered. */
interface GatheredOperand extends OperandChunks {
  /**
   * The sums by rank, including this rank; empty if only this rank's rows are used, because they accumulate in place.
   */
  readonly sumsByRank: ReadonlyMap<number, Chunk>;
}

/** Buffers for gathered chunks and their sums, and the messages that fill the former. */
interface GatherBuffers {
  readonly inputs: ChunkBuffers;
  readonly results: ChunkBuffers;
  readonly transfers: Transfer[];
}

/** The return of sums to their owners: the messages, and the received sums over this rank's rows. */
interface ReduceScatterStep {
  readonly results: ChunkBuffers;
  readonly transfers: Transfer[];
  readonly receivedShares: { readonly operand: Operand; readonly share: Chunk }[];
}

/** Runs a pass by the fused schedule. */
export class FusedExecutor implements PassExecutor {
  readonly #pass: Pass;
  // Queries are kept for all tiles. Their memory is released before the sums over them are sent.
  readonly #inputs: ChunkBuffers;
  readonly #resultBuffers: ChunkBuffers;
  #queries: GatheredOperand | undefined;

  constructor(pass: Pass) {
    this.#pass = pass;
    this.#inputs = createBuffers(pass);
    this.#resultBuffers = createBuffers(pass);
  }

  add(tile: Tile): void {
    const pass = this.#pass;
    using results = createBuffers(pass);
    const { queries, keys } = this.#compute(tile, results);
    const reduction: ReduceScatterStep = { results, transfers: [], receivedShares: [] };
    if (tile.isLast) {
      this.#inputs[Symbol.dispose]();
      reduceToOwners(pass.queries, queries, reduction);
    }
    reduceToOwners(tile.keys, keys, reduction);
    sendRecv(pass, reduction.transfers);
    // This rank's sums first, then those of other ranks by offset, so that the order is deterministic.
    if (tile.isLast) this.#accumulateOwn(pass.queries, queries);
    this.#accumulateOwn(tile.keys, keys);
    for (const { operand, share } of reduction.receivedShares) operand.accumulate(operand.sums, share.tensors);
  }

  /** Gathers the rows and computes the tile. Releases the keys on return; the sums over them remain in `results`. */
  #compute(tile: Tile, results: ChunkBuffers): Record<"queries" | "keys", GatheredOperand> {
    using inputs = createBuffers(this.#pass);
    const transfers: Transfer[] = [];
    const queries = (this.#queries ??= this.#gatherOperand(this.#pass.queries, {
      inputs: this.#inputs,
      results: this.#resultBuffers,
      transfers,
    }));
    const keys = this.#gatherOperand(tile.keys, { inputs, results, transfers });
    sendRecv(this.#pass, transfers);
    if (keys.ranks.length > 0) tile.compute(queries, keys);
    return { queries, keys };
  }

  /**
   * Allocates an operand and collects its messages without posting them. Chunks are in rank order so that adjacent
   * spans join.
   */
  #gatherOperand(
    { peers, inputs, sums, clear }: Operand,
    { inputs: inputBuffers, results, transfers }: GatherBuffers,
  ): GatheredOperand {
    const ownRank = this.#pass.group.rank;
    const destinations = peers.destinations.filter((rank) => rank !== undefined);
    const ranks = peers.sources.filter((rank) => rank !== undefined).toSorted((a, b) => a - b);
    const pushOwnTransfers = (ownChunk: Chunk): void =>
      void transfers.push(...destinations.flatMap((to) => sendTransfers(ownChunk, to)));
    if (ranks.every((rank) => rank === ownRank)) {
      const ownChunk = destinations.length > 0 ? inputBuffers.contiguous(inputs) : { tensors: inputs, wire: [] };
      pushOwnTransfers(ownChunk);
      return { ranks, inputs: ownChunk.tensors, sums, sumsByRank: new Map() };
    }
    const numRows = ranks.reduce((rows, rank) => rows + peers.rows(rank), 0);
    const gatheredInputs = inputBuffers.empty(inputs, numRows);
    const chunks = sliceByRank(inputBuffers, gatheredInputs, { ranks, peers });
    const ownSlice = chunks.get(ownRank);
    const ownSendChunk = destinations.length > 0 && !ownSlice ? inputBuffers.contiguous(inputs) : ownSlice;
    if (ownSlice) inputBuffers.copy(inputs, ownSlice);
    for (const [rank, chunk] of chunks) if (rank !== ownRank) transfers.push(...recvTransfers(chunk, rank));
    if (ownSendChunk) pushOwnTransfers(ownSendChunk);
    const gatheredSums = results.empty(sums, numRows);
    clear(gatheredSums.tensors);
    const sumsByRank = sliceByRank(results, gatheredSums, { ranks, peers });
    return { ranks, inputs: gatheredInputs.tensors, sums: gatheredSums.tensors, sumsByRank };
  }

  #accumulateOwn({ sums, accumulate }: Operand, { sumsByRank }: GatheredOperand): void {
    const ownSums = sumsByRank.get(this.#pass.group.rank);
    if (ownSums) accumulate(sums, ownSums.tensors);
  }

  [Symbol.dispose](): void {
    this.#inputs[Symbol.dispose]();
    this.#resultBuffers[Symbol.dispose]();
  }
}

function createBuffers({ group: { device } }: Pass): ChunkBuffers {
  return new ChunkBuffers({ device, order: "sbhd" });
}

/** Returns each rank's part of a gathered chunk. */
function sliceByRank(
  buffers: ChunkBuffers,
  gatheredChunk: Chunk,
  { ranks, peers }: { readonly ranks: readonly number[]; readonly peers: TilePeers },
): Map<number, Chunk> {
  let firstRow = 0;
  return new Map(
    ranks.map((rank) => {
      const count = peers.rows(rank);
      const rankChunk = buffers.narrow(gatheredChunk, firstRow, count);
      firstRow += count;
      return [rank, rankChunk];
    }),
  );
}

/** Adds the messages that return sums to their owners, and allocates memory for the received sums. */
function reduceToOwners(
  operand: Operand,
  { sumsByRank }: GatheredOperand,
  { results, transfers, receivedShares }: ReduceScatterStep,
): void {
  const { peers, sums } = operand;
  if (sums.length === 0) return;
  for (const [offset, owner] of peers.sources.entries()) {
    const share = owner === undefined || offset === 0 ? undefined : sumsByRank.get(owner);
    if (share) transfers.push(...sendTransfers(share, owner!));
  }
  for (const contributor of peers.destinations) {
    if (contributor === undefined) continue;
    const share = results.empty(sums, sums[0]!.shape[2]!);
    receivedShares.push({ operand, share });
    transfers.push(...recvTransfers(share, contributor));
  }
}

/** Sends and receives one batch. Work enqueued afterwards waits for it. */
function sendRecv({ group, label }: Pass, transfers: readonly Transfer[]): void {
  if (transfers.length > 0) group.sendRecv(transfers, { label }).wait();
}
