import type { Device, Tensor, Transfer } from "@mosaic/core";

/**
 * Tensors that belong to the same rows and travel together, seen twice: `rows` as attention sees them, [B,H,S,D] or
 * [B,H,S], and `wire` as they lie in memory and in messages, [S,B,H,D] or [S,B,H], dense. With S outermost, the chunks of
 * several ranks lie one after the other in a tensor that attention sees as one.
 */
export interface Chunk {
  readonly rows: readonly Tensor[];
  readonly wire: readonly Tensor[];
}

/** One message per member of the chunk. */
export function messages({ wire }: Chunk, to: number): Transfer[] {
  return wire.map((tensor) => ({ tensor, to }));
}

const toWire = [2, 0, 1, 3];
const toRows = [1, 2, 0, 3];

/** The device memory of one pass; what it hands out lives until this is disposed. */
export class Chunks implements Disposable {
  readonly #device: Device;
  readonly #owned = new Set<Tensor>();

  constructor(device: Device) {
    this.#device = device;
  }

  /** Uninitialised memory for tensors [B,H,·,D] like these, of `length` rows. */
  empty(like: readonly Tensor[], length: number): Chunk {
    const wire = like.map(({ shape, dtype }) => {
      const [batch, heads, , ...rest] = shape;
      return this.#own(this.#device.empty([length, batch!, heads!, ...rest], dtype));
    });
    return { wire, rows: wire.map((tensor) => this.#turned(tensor, toRows)) };
  }

  /** These very rows where they lie as messages do, copies where they do not. */
  dense(rows: readonly Tensor[]): Chunk {
    const wire = rows.map((tensor) => this.#turned(tensor, toWire));
    if (wire.every(({ isContiguous }) => isContiguous)) return { rows, wire };
    return this.copied(rows, this.empty(rows, rows[0]!.shape[2]!));
  }

  /** Copies rows into a chunk. */
  copied(rows: readonly Tensor[], into: Chunk): Chunk {
    for (const [i, tensor] of rows.entries()) this.#device.kernels.copy(into.rows[i]!, tensor);
    return into;
  }

  /** Some of the rows of a chunk. */
  part({ wire }: Chunk, start: number, length: number): Chunk {
    const parts = wire.map((tensor) => {
      const { shape, strides, offset } = tensor;
      const view = { shape: [length, ...shape.slice(1)], strides, offset: offset + start * strides[0]! };
      return this.#own(tensor.view(view));
    });
    return { wire: parts, rows: parts.map((tensor) => this.#turned(tensor, toRows)) };
  }

  /** Gives memory back before the pass ends. */
  release({ rows, wire }: Chunk): void {
    for (const tensor of [...rows, ...wire]) {
      this.#owned.delete(tensor);
      tensor[Symbol.dispose]();
    }
  }

  #turned(tensor: Tensor, order: readonly number[]): Tensor {
    const axes = order.slice(0, tensor.rank);
    const pick = (sizes: readonly number[]) => axes.map((axis) => sizes[axis]!);
    return this.#own(tensor.view({ shape: pick(tensor.shape), strides: pick(tensor.strides) }));
  }

  #own(tensor: Tensor): Tensor {
    this.#owned.add(tensor);
    return tensor;
  }

  [Symbol.dispose](): void {
    for (const tensor of this.#owned) tensor[Symbol.dispose]();
    this.#owned.clear();
  }
}
