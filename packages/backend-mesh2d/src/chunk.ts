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
  readonly #owned = new Set<Chunk>();

  constructor(device: Device) {
    this.#device = device;
  }

  /** Uninitialised memory for tensors [B,H,·,D] like these, of `length` rows. */
  empty(like: readonly Tensor[], length: number): Chunk {
    const wire = like.map(({ shape, dtype }) => {
      const wide = [length, shape[0]!, shape[1]!];
      for (let axis = 3; axis < shape.length; axis++) wide.push(shape[axis]!);
      return this.#device.empty(wide, dtype);
    });
    return this.#own({ wire, rows: turned(wire, toRows) });
  }

  /** These very rows where they lie as messages do, copies where they do not. */
  dense(rows: readonly Tensor[]): Chunk {
    const { wire } = this.#own({ rows: [], wire: turned(rows, toWire) });
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
    return this.#own({ wire: parts, rows: turned(parts, toRows) });
  }

  /** Gives memory back before the pass ends. */
  release(chunk: Chunk): void {
    if (this.#owned.delete(chunk)) dispose(chunk);
  }

  #own(chunk: Chunk): Chunk {
    this.#owned.add(chunk);
    return chunk;
  }

  [Symbol.dispose](): void {
    for (const chunk of this.#owned) dispose(chunk);
    this.#owned.clear();
  }
}

/** The same tensors with their axes in another order. */
function turned(tensors: readonly Tensor[], order: readonly number[]): readonly Tensor[] {
  return tensors.map((tensor) =>
    tensor.view({ shape: picked(tensor.shape, order), strides: picked(tensor.strides, order) }),
  );
}

function picked(sizes: readonly number[], order: readonly number[]): number[] {
  const result: number[] = [];
  for (let axis = 0; axis < sizes.length; axis++) result.push(sizes[order[axis]!]!);
  return result;
}

function dispose({ rows, wire }: Chunk): void {
  for (const tensor of rows) tensor[Symbol.dispose]();
  for (const tensor of wire) tensor[Symbol.dispose]();
}
