import type { Transfer } from "@mosaic/core";
import { Channel } from "./channel.ts";
import { type Chunk, Chunks, messages } from "./chunk.ts";
import type { Side } from "./need.ts";
import type { Lane, Part, Pass } from "./pass.ts";
import type { Plan } from "./plan.ts";

/** Replays a plan: moves are posted ahead, blocks computed as their chunks come, each transfer behind others' blocks. */
export function runScheduled(pass: Pass, plan: Plan): void {
  using chunks = new Chunks(pass.group.device);
  using channel = new Channel(pass.group, pass.label);
  const queries = new Track(pass.queries, { chunks, channel });
  const keys = new Track(pass.keys, { chunks, channel });
  for (const step of plan.steps) {
    switch (step.kind) {
      case "q":
        queries.bring(step.offset);
        break;
      case "kv":
        keys.bring(step.offset);
        break;
      case "out":
        queries.send(step.offset);
        break;
      case "dkv":
        keys.send(step.offset);
        break;
      case "block":
        block(pass, queries.at(step.x), keys.at(step.y));
        queries.leave(step.x, pass.keys.side);
        keys.leave(step.y, pass.queries.side);
    }
  }
  channel.wait();

  function block({ need, compute }: Pass, row: Place, column: Place): void {
    if (row.source === undefined || column.source === undefined || !need.sees(row.source, column.source)) return;
    channel.wait(Math.max(row.batch, column.batch));
    compute(row.part(), column.part());
  }
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

interface Means {
  readonly chunks: Chunks;
  readonly channel: Channel;
}

/** One dimension of the tile: chunks come in offset by offset, and so do their sums leave. */
class Track {
  readonly #lane: Lane;
  readonly #means: Means;
  /** This rank's rows as others get them. */
  readonly #own: Chunk | undefined;
  readonly #inputs = new Map<number, Chunk>();
  readonly #sums = new Map<number, Chunk>();
  readonly #batches = new Map<number, number>();
  /** Blocks that were passed, computed or not, by offset. */
  readonly #passed = new Map<number, number>();

  constructor(lane: Lane, means: Means) {
    this.#lane = lane;
    this.#means = means;
    const isTaken = lane.side.takers.some((taker) => taker !== undefined);
    this.#own = isTaken ? means.chunks.dense(lane.inputs) : undefined;
  }

  /** Posts the batch that brings the chunk at an offset, and this rank's own to the one that has it there. */
  bring(offset: number): void {
    const { side, inputs } = this.#lane;
    const from = side.sources[offset];
    const to = side.takers[offset];
    const transfers: Transfer[] = to === undefined ? [] : messages(this.#own!, to);
    if (from !== undefined) {
      const room = this.#means.chunks.empty(inputs, side.length(from));
      this.#inputs.set(offset, room);
      transfers.push(...room.wire.map((tensor) => ({ tensor, from })));
    }
    this.#batches.set(offset, this.#means.channel.post(transfers));
  }

  /** Posts the batch that takes the sums at an offset home, and brings those over this rank's own rows. */
  send(offset: number): void {
    const { side, sums } = this.#lane;
    const { chunks, channel } = this.#means;
    const to = side.sources[offset];
    const from = side.takers[offset];
    const leaving = to === undefined ? undefined : this.#sums.get(offset)!;
    const coming = from === undefined ? undefined : chunks.empty(sums, sums[0]!.shape[2]!);
    const transfers = [
      ...(leaving ? messages(leaving, to!) : []),
      ...(coming?.wire ?? []).map((tensor) => ({ tensor, from: from! })),
    ];
    channel.post(transfers, () => {
      if (coming) this.#lane.absorb(sums, coming.rows);
      for (const chunk of [leaving, coming]) if (chunk) chunks.release(chunk);
    });
  }

  /** After each block of a chunk; gives its rows back after the last, one for every chunk of the other dimension. */
  leave(offset: number, { sources }: Side): void {
    const passed = (this.#passed.get(offset) ?? 0) + 1;
    this.#passed.set(offset, passed);
    const inputs = this.#inputs.get(offset);
    if (passed === sources.length && inputs) this.#means.chunks.release(inputs);
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
      own = this.#means.chunks.empty(sums, side.length(source));
      this.#lane.clear(own.rows);
      this.#sums.set(offset, own);
    }
    return { ranks: [source], inputs: this.#inputs.get(offset)!.rows, sums: own.rows };
  }
}
