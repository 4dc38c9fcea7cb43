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
  readonly #owned = new Set<readonly Tensor[]>();

  constructor(device: Device) {
    this.#device = device;
  }

  /** Uninitialised memory for tensors [B,H,·,D] like these, of `length` rows. */
  empty(like: readonly Tensor[], length: number): Chunk {
    const wire = this.#own(
      like.map(({ shape, dtype }) => {
        const wide = [length, shape[0]!, shape[1]!];
        for (let axis = 3; axis < shape.length; axis++) wide.push(shape[axis]!);
        return this.#device.empty(wide, dtype);
      }),
    );
    return { wire, rows: this.#turned(wire, toRows) };
  }

  /** These very rows where they lie as messages do, copies where they do not. */
  dense(rows: readonly Tensor[]): Chunk {
    const wire = this.#turned(rows, toWire);
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
      return tensor.view({ shape: [length, ...shape.slice(1)], strides, offset: offset + start * strides[0]! });
    });
    return { wire: this.#own(parts), rows: this.#turned(parts, toRows) };
  }

  /** Gives memory back before the pass ends. */
  release({ rows, wire }: Chunk): void {
    for (const tensors of [rows, wire]) if (this.#owned.delete(tensors)) dispose(tensors);
  }

  #turned(tensors: readonly Tensor[], order: readonly number[]): readonly Tensor[] {
    return this.#own(
      tensors.map((tensor) =>
        tensor.view({ shape: turned(tensor.shape, order), strides: turned(tensor.strides, order) }),
      ),
    );
  }

  #own(tensors: readonly Tensor[]): readonly Tensor[] {
    this.#owned.add(tensors);
    return tensors;
  }

  [Symbol.dispose](): void {
    for (const tensors of this.#owned) dispose(tensors);
    this.#owned.clear();
  }
}

function turned(sizes: readonly number[], order: readonly number[]): number[] {
  const result: number[] = [];
  for (let axis = 0; axis < sizes.length; axis++) result.push(sizes[order[axis]!]!);
  return result;
}

function dispose(tensors: readonly Tensor[]): void {
  for (const tensor of tensors) tensor[Symbol.dispose]();
}
