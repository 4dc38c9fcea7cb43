import type { Transfer } from "@mosaic/core";
import { type Chunk, Chunks, messages } from "./chunk.ts";
import type { Lane, Part, Pass } from "./pass.ts";

// All rows of the tile come in one batch, one call computes it, and all sums go home in another: Attention2D's
// non-overlapped form. Few messages and one large kernel call, but no transfer is hidden.

/** One dimension of the tile, gathered. */
interface Gathering extends Part {
  /** The sums by rank, that of this rank included; empty if they are this rank's very own, complete as they are. */
  readonly shares: ReadonlyMap<number, Chunk>;
}

/** Runs a pass in the fused form. */
export function runFused(pass: Pass): void {
  const { device } = pass.group;
  using results = new Chunks(device);
  const both = compute(pass, results);
  const arrived: Arrival[] = [];
  post(pass, [
    ...homeward(pass.queries, both.queries, { results, arrived }),
    ...homeward(pass.keys, both.keys, { results, arrived }),
  ]);
  // This rank's own share first, then those of others by offset: the same order every time.
  for (const [lane, { shares }] of [[pass.queries, both.queries] as const, [pass.keys, both.keys] as const]) {
    const own = shares.get(pass.need.rank);
    if (own) lane.absorb(lane.sums, own.rows);
  }
  for (const { lane, share } of arrived) lane.absorb(lane.sums, share.rows);
}

/** Gathers the rows and computes the tile; the rows are given back, the sums stay in `results`. */
function compute(pass: Pass, results: Chunks): Record<"queries" | "keys", Gathering> {
  using inputs = new Chunks(pass.group.device);
  const transfers: Transfer[] = [];
  const memory = { inputs, results, transfers };
  const queries = gather(pass, pass.queries, memory);
  const keys = gather(pass, pass.keys, memory);
  post(pass, transfers);
  if (queries.ranks.length > 0) pass.compute(queries, keys);
  return { queries, keys };
}

interface Memory {
  readonly inputs: Chunks;
  readonly results: Chunks;
  readonly transfers: Transfer[];
}

/** Room for the chunks of one dimension, in the order of ranks, so that neighbouring stretches become one. */
function gather(pass: Pass, lane: Lane, memory: Memory): Gathering {
  const { side, inputs, sums } = lane;
  const self = pass.need.rank;
  const takers = side.takers.filter((taker) => taker !== undefined);
  const ranks = side.sources.filter((source) => source !== undefined).toSorted((a, b) => a - b);
  const alone = ranks.every((rank) => rank === self);
  if (alone) {
    const own = takers.length > 0 ? memory.inputs.dense(inputs) : { rows: inputs, wire: [] };
    memory.transfers.push(...takers.flatMap((to) => messages(own, to)));
    return { ranks, inputs: own.rows, sums, shares: new Map() };
  }
  const total = ranks.reduce((sum, rank) => sum + side.length(rank), 0);
  const all = memory.inputs.empty(inputs, total);
  const chunks = split(memory.inputs, all, { ranks, side });
  const room = chunks.get(self);
  const own = takers.length > 0 && !room ? memory.inputs.dense(inputs) : room;
  if (room) memory.inputs.copied(inputs, room);
  for (const [rank, { wire }] of chunks) {
    if (rank !== self) memory.transfers.push(...wire.map((tensor) => ({ tensor, from: rank })));
  }
  memory.transfers.push(...takers.flatMap((to) => messages(own!, to)));
  const allSums = memory.results.empty(sums, total);
  lane.clear(allSums.rows);
  return { ranks, inputs: all.rows, sums: allSums.rows, shares: split(memory.results, allSums, { ranks, side }) };
}

/** The chunks of several ranks within one that holds them all. */
function split(
  memory: Chunks,
  all: Chunk,
  { ranks, side }: { readonly ranks: readonly number[]; readonly side: Lane["side"] },
): Map<number, Chunk> {
  let start = 0;
  return new Map(
    ranks.map((rank) => {
      const length = side.length(rank);
      const part = memory.part(all, start, length);
      start += length;
      return [rank, part];
    }),
  );
}

/** Sums over this rank's rows that another computed. */
interface Arrival {
  readonly lane: Lane;
  readonly share: Chunk;
}

/** The messages that bring sums home, and room for those that arrive. */
function homeward(
  lane: Lane,
  { shares }: Gathering,
  { results, arrived }: { readonly results: Chunks; readonly arrived: Arrival[] },
): Transfer[] {
  const { side, sums } = lane;
  if (sums.length === 0) return [];
  const leaving = side.sources.flatMap((to, offset) => {
    const share = to === undefined || offset === 0 ? undefined : shares.get(to);
    return share ? messages(share, to!) : [];
  });
  const arriving = side.takers.flatMap((from) => {
    if (from === undefined) return [];
    const share = results.empty(sums, sums[0]!.shape[2]!);
    arrived.push({ lane, share });
    return share.wire.map((tensor) => ({ tensor, from }));
  });
  return [...leaving, ...arriving];
}

/** One batch; what is computed next waits for it. */
function post({ group, label }: Pass, transfers: readonly Transfer[]): void {
  if (transfers.length > 0) group.sendRecv(transfers, { label }).wait();
}
