import type { Transfer } from "@mosaic/core";
import { type Chunk, Chunks, messages } from "./chunk.ts";
import type { Lane, Part, Pass, Runner, Tile } from "./pass.ts";

// All rows of the tile come in one batch, one call computes it, and all sums go home in another: Attention2D's
// non-overlapped form. Few messages and one large kernel call, but no transfer is hidden.

/** One dimension of the tile, gathered. */
interface Gathering extends Part {
  /** The sums by rank, that of this rank included; empty if they are this rank's very own, complete as they are. */
  readonly shares: ReadonlyMap<number, Chunk>;
}

/** Where a gathering lies, and the messages that bring it. */
interface Memory {
  readonly inputs: Chunks;
  readonly results: Chunks;
  readonly transfers: Transfer[];
}

/** Sums over this rank's rows that another computed. */
interface Arrival {
  readonly lane: Lane;
  readonly share: Chunk;
}

/** The way home of all sums of some lanes. */
interface Homeward {
  readonly results: Chunks;
  readonly transfers: Transfer[];
  readonly arrived: Arrival[];
}

/** Runs a pass in the fused form. */
export class Fused implements Runner {
  readonly #pass: Pass;
  // The queries stay for all tiles; their rows are given back before the sums over them leave.
  readonly #inputs: Chunks;
  readonly #results: Chunks;
  #queries: Gathering | undefined;

  constructor(pass: Pass) {
    this.#pass = pass;
    this.#inputs = new Chunks(pass.group.device);
    this.#results = new Chunks(pass.group.device);
  }

  add(tile: Tile): void {
    const pass = this.#pass;
    using results = new Chunks(pass.group.device);
    const { queries, keys } = this.#compute(tile, results);
    const home: Homeward = { results, transfers: [], arrived: [] };
    if (tile.last) {
      this.#inputs[Symbol.dispose]();
      homeward(pass.queries, queries, home);
    }
    homeward(tile.keys, keys, home);
    post(pass, home.transfers);
    // This rank's own share first, then those of others by offset: the same order every time.
    if (tile.last) this.#absorbOwn(pass.queries, queries);
    this.#absorbOwn(tile.keys, keys);
    for (const { lane, share } of home.arrived) lane.absorb(lane.sums, share.rows);
  }

  /** Gathers the rows and computes the tile; the keys are given back, the sums over them stay in `results`. */
  #compute(tile: Tile, results: Chunks): Record<"queries" | "keys", Gathering> {
    using inputs = new Chunks(this.#pass.group.device);
    const transfers: Transfer[] = [];
    const memory = { inputs: this.#inputs, results: this.#results, transfers };
    const queries = (this.#queries ??= this.#gather(this.#pass.queries, memory));
    const keys = this.#gather(tile.keys, { inputs, results, transfers });
    post(this.#pass, transfers);
    if (keys.ranks.length > 0) tile.compute(queries, keys);
    return { queries, keys };
  }

  /** Room for the chunks of one dimension, in the order of ranks, so that neighbouring stretches become one. */
  #gather(lane: Lane, memory: Memory): Gathering {
    const { side, inputs, sums } = lane;
    const self = this.#pass.group.rank;
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

  #absorbOwn(lane: Lane, { shares }: Gathering): void {
    const own = shares.get(this.#pass.group.rank);
    if (own) lane.absorb(lane.sums, own.rows);
  }

  [Symbol.dispose](): void {
    this.#inputs[Symbol.dispose]();
    this.#results[Symbol.dispose]();
  }
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

/** Adds the messages that bring sums home, and room for those that arrive. */
function homeward(lane: Lane, { shares }: Gathering, { results, transfers, arrived }: Homeward): void {
  const { side, sums } = lane;
  if (sums.length === 0) return;
  for (const [offset, to] of side.sources.entries()) {
    const share = to === undefined || offset === 0 ? undefined : shares.get(to);
    if (share) transfers.push(...messages(share, to!));
  }
  for (const from of side.takers) {
    if (from === undefined) continue;
    const share = results.empty(sums, sums[0]!.shape[2]!);
    arrived.push({ lane, share });
    transfers.push(...share.wire.map((tensor) => ({ tensor, from })));
  }
}

/** One batch; what is computed next waits for it. */
function post({ group, label }: Pass, transfers: readonly Transfer[]): void {
  if (transfers.length > 0) group.sendRecv(transfers, { label }).wait();
}
