import type { Transfer } from "@mosaic/core";
import { type Chunk, ChunkBuffers, recvTransfers, sendTransfers } from "@mosaic/core/context-parallel";
import type { Operand, OperandChunks, Pass, PassExecutor, Tile } from "./pass.ts";
import type { TilePeers } from "./tile.ts";

// All rows of the tile come in one batch, one call computes it, and all sums go back in another: Attention2D's
// non-overlapped form. Few messages and one large kernel call, but no transfer is hidden.

/** An operand whose chunks are gathered. */
interface GatheredOperand extends OperandChunks {
  /** The sums by rank, that of this rank included; empty if they are this rank's very own, complete as they are. */
  readonly sumsByRank: ReadonlyMap<number, Chunk>;
}

/** Where chunks are gathered, and the messages that bring them. */
interface GatherBuffers {
  readonly inputs: ChunkBuffers;
  readonly results: ChunkBuffers;
  readonly transfers: Transfer[];
}

/** The return of sums to their owners: messages, and sums over this rank's rows that others computed. */
interface ReduceScatterStep {
  readonly results: ChunkBuffers;
  readonly transfers: Transfer[];
  readonly receivedShares: { readonly operand: Operand; readonly share: Chunk }[];
}

/** Runs a pass by the fused schedule. */
export class FusedExecutor implements PassExecutor {
  readonly #pass: Pass;
  // The queries stay for all tiles; their rows are given back before the sums over them leave.
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
    // This rank's own share first, then those of others by offset: the same order every time.
    if (tile.isLast) this.#accumulateOwn(pass.queries, queries);
    this.#accumulateOwn(tile.keys, keys);
    for (const { operand, share } of reduction.receivedShares) operand.accumulate(operand.sums, share.tensors);
  }

  /** Gathers the rows and computes the tile; the keys are given back, the sums over them stay in `results`. */
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

  /** Posts nothing yet. Chunks lie in the order of ranks, so that neighbouring stretches become one. */
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

/** The chunks of several ranks within one that holds them all. */
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

/** Adds the messages that return sums to their owners, and memory for those that arrive. */
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

/** One batch; what is computed next waits for it. */
function sendRecv({ group, label }: Pass, transfers: readonly Transfer[]): void {
  if (transfers.length > 0) group.sendRecv(transfers, { label }).wait();
}
