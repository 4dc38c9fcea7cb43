import type { Transfer } from "@mosaic/core";
import { Channel } from "./channel.ts";
import { type Chunk, Chunks, messages } from "./chunk.ts";
import type { Side } from "./need.ts";
import type { Lane, Part, Pass } from "./pass.ts";
import type { Plan } from "./plan.ts";
import { type Move, rowKinds } from "./progress.ts";

/** Replays a plan: batches are posted ahead, blocks computed as their chunks come, each transfer behind others' blocks. */
export function runScheduled(pass: Pass, plan: Plan): void {
  using chunks = new Chunks(pass.group.device);
  using channel = new Channel(pass.group, pass.label);
  const queries = new Track(pass.queries, chunks);
  const keys = new Track(pass.keys, chunks);
  for (const step of plan.steps) {
    if (step.kind === "batch") post(step.moves);
    else {
      block(pass, queries.at(step.x), keys.at(step.y));
      queries.leave(step.x, pass.keys.side);
      keys.leave(step.y, pass.queries.side);
    }
  }
  channel.wait();

  function post(moves: readonly Move[]): void {
    const parcels = moves.map(parcelOf);
    const transfers = parcels.flatMap((parcel) => parcel.transfers);
    const number = channel.post(transfers, () => {
      for (const { arrived } of parcels) arrived?.();
    });
    for (const { kind, offset } of moves) {
      if (kind === "q") queries.expect(offset, number);
      if (kind === "kv") keys.expect(offset, number);
    }
  }

  function parcelOf({ kind, offset }: Move): Parcel {
    const track = rowKinds.includes(kind) ? queries : keys;
    return kind === "q" || kind === "kv" ? track.bring(offset) : track.send(offset);
  }

  function block({ need, compute }: Pass, row: Place, column: Place): void {
    if (row.source === undefined || column.source === undefined || !need.sees(row.source, column.source)) return;
    channel.wait(Math.max(row.batch, column.batch));
    compute(row.part(), column.part());
  }
}

/** What one move adds to a batch, and what to do when it is there. */
interface Parcel {
  readonly transfers: readonly Transfer[];
  readonly arrived?: () => void;
}

/** One row or column of the tile. */
interface Place {
  /** Whose chunk it is, if anything is computed on it. */
  readonly source: number | undefined;
  /** The batch that brings it. */
  readonly batch: number;
  /** Its rows and its sums, which begin when they are first asked for. */
  part(): Part;
}

/** One dimension of the tile: chunks come in offset by offset, and so do their sums leave. */
class Track {
  readonly #lane: Lane;
  readonly #chunks: Chunks;
  /** This rank's rows as others get them. */
  readonly #own: Chunk | undefined;
  readonly #inputs = new Map<number, Chunk>();
  readonly #sums = new Map<number, Chunk>();
  readonly #batches = new Map<number, number>();
  /** Blocks that were passed, computed or not, by offset. */
  readonly #passed = new Map<number, number>();

  constructor(lane: Lane, chunks: Chunks) {
    this.#lane = lane;
    this.#chunks = chunks;
    const isTaken = lane.side.takers.some((taker) => taker !== undefined);
    this.#own = isTaken ? chunks.dense(lane.inputs) : undefined;
  }

  /** Brings the chunk at an offset, and this rank's own to the one that has it there. */
  bring(offset: number): Parcel {
    const { side, inputs } = this.#lane;
    const from = side.sources[offset];
    const to = side.takers[offset];
    const transfers: Transfer[] = to === undefined ? [] : messages(this.#own!, to);
    if (from !== undefined) {
      const room = this.#chunks.empty(inputs, side.length(from));
      this.#inputs.set(offset, room);
      transfers.push(...room.wire.map((tensor) => ({ tensor, from })));
    }
    return { transfers };
  }

  /** Says which batch brings the chunk at an offset. */
  expect(offset: number, batch: number): void {
    this.#batches.set(offset, batch);
  }

  /** Takes the sums at an offset home, and brings those over this rank's own rows. */
  send(offset: number): Parcel {
    const { side, sums } = this.#lane;
    const chunks = this.#chunks;
    const to = side.sources[offset];
    const from = side.takers[offset];
    const leaving = to === undefined ? undefined : this.#sums.get(offset)!;
    const coming = from === undefined ? undefined : chunks.empty(sums, sums[0]!.shape[2]!);
    const transfers = [
      ...(leaving ? messages(leaving, to!) : []),
      ...(coming?.wire ?? []).map((tensor) => ({ tensor, from: from! })),
    ];
    const arrived = () => {
      if (coming) this.#lane.absorb(sums, coming.rows);
      for (const chunk of [leaving, coming]) if (chunk) chunks.release(chunk);
    };
    return { transfers, arrived };
  }

  /** After each block of a chunk; gives its rows back after the last, one for every chunk of the other dimension. */
  leave(offset: number, { sources }: Side): void {
    const passed = (this.#passed.get(offset) ?? 0) + 1;
    this.#passed.set(offset, passed);
    const inputs = this.#inputs.get(offset);
    if (passed === sources.length && inputs) this.#chunks.release(inputs);
  }

  at(offset: number): Place {
    const source = this.#lane.side.sources[offset];
    return { source, batch: this.#batches.get(offset) ?? 0, part: () => this.#part(source!, offset) };
  }

  /** One's own rows are where they were, and their sums go where they belong; others' lie in memory of this pass. */
  #part(source: number, offset: number): Part {
    const { side, inputs, sums } = this.#lane;
    if (offset === 0) return { ranks: [source], inputs, sums };
    let own = this.#sums.get(offset);
    if (!own) {
      own = this.#chunks.empty(sums, side.length(source));
      this.#lane.clear(own.rows);
      this.#sums.set(offset, own);
    }
    return { ranks: [source], inputs: this.#inputs.get(offset)!.rows, sums: own.rows };
  }
}
