import type { Transfer } from "@mosaic/core";
import { Channel } from "./channel.ts";
import { Chunks } from "./chunk.ts";
import type { Pass, Runner, Tile } from "./pass.ts";
import type { Plan } from "./plan.ts";
import { type Move, rowKinds } from "./progress.ts";
import { Track } from "./track.ts";

/** Replays plans: batches are posted ahead, blocks computed as their chunks come, each transfer behind others' blocks. */
export class Scheduled implements Runner {
  readonly #pass: Pass;
  readonly #planOf: (tile: Tile) => Plan;
  readonly #chunks: Chunks;
  readonly #channel: Channel;
  readonly #queries: Track;

  constructor(pass: Pass, planOf: (tile: Tile) => Plan) {
    this.#pass = pass;
    this.#planOf = planOf;
    this.#chunks = new Chunks(pass.group.device);
    this.#channel = new Channel(pass.group, pass.label);
    this.#queries = new Track(pass.queries, this.#chunks);
  }

  add(tile: Tile): void {
    using chunks = new Chunks(this.#pass.group.device);
    // Whatever happens, nothing is under way when the chunks are given back.
    using channel = this.#channel;
    const queries = this.#queries;
    const keys = new Track(tile.keys, chunks);
    for (const step of this.#planOf(tile).steps) {
      if (step.kind === "batch") this.#post(step.moves, tile, keys);
      else {
        this.#block(step.x, step.y, tile, keys);
        if (tile.last) queries.leave(step.x, tile.keys.side);
        keys.leave(step.y, this.#pass.queries.side);
      }
    }
    channel.wait();
  }

  /** Queries come with the first tile, and the sums over them leave with the last. */
  #post(moves: readonly Move[], { first, last }: Tile, keys: Track): void {
    const transfers: Transfer[] = [];
    const arrivals: (() => void)[] = [];
    for (const { kind, offset } of moves) {
      const track = rowKinds.includes(kind) ? this.#queries : keys;
      if (kind === "kv" || (kind === "q" && first)) track.bring(offset, transfers);
      else if (kind === "dkv" || (kind === "out" && last)) arrivals.push(track.send(offset, transfers));
    }
    const number = this.#channel.post(transfers, arrivals);
    for (const { kind, offset } of moves) {
      if (kind === "kv") keys.expect(offset, number);
      if (kind === "q" && first) this.#queries.expect(offset, number);
    }
  }

  #block(x: number, y: number, tile: Tile, keys: Track): void {
    const queries = this.#queries;
    const [row, column] = [this.#pass.queries.side.sources[x], tile.keys.side.sources[y]];
    if (row === undefined || column === undefined || !tile.sees(row, column)) return;
    this.#channel.wait(Math.max(queries.batchOf(x), keys.batchOf(y)));
    tile.compute(queries.part(x), keys.part(y));
  }

  [Symbol.dispose](): void {
    this.#chunks[Symbol.dispose]();
  }
}
