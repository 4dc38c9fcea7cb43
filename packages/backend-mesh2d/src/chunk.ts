import { contiguousStrides, type Device, type Shape, type Tensor, type Transfer } from "@mosaic/core";

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

/** How a tensor of a chunk lies in memory, and what attention sees of it. */
interface Form {
  readonly wire: Shape;
  readonly rows: { readonly shape: Shape; readonly strides: Shape };
}

/** The device memory of one pass; what it hands out lives until this is disposed. */
export class Chunks implements Disposable {
  readonly #device: Device;
  readonly #owned = new Set<Chunk>();
  /** By the tensors they are like; of the last length, for most chunks are of one. */
  readonly #forms = new Map<readonly Tensor[], { readonly length: number; readonly forms: readonly Form[] }>();

  constructor(device: Device) {
    this.#device = device;
  }

  /** Uninitialised memory for tensors [B,H,·,D] like these, of `length` rows. */
  empty(like: readonly Tensor[], length: number): Chunk {
    const forms = this.#formsOf(like, length);
    const wire = forms.map((form, i) => this.#device.empty(form.wire, like[i]!.dtype));
    return this.#own({ wire, rows: wire.map((tensor, i) => tensor.view(forms[i]!.rows)) });
  }

  #formsOf(like: readonly Tensor[], length: number): readonly Form[] {
    let last = this.#forms.get(like);
    if (last?.length !== length) {
      last = { length, forms: like.map(({ shape }) => formOf(shape, length)) };
      this.#forms.set(like, last);
    }
    return last.forms;
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

function formOf([batch, heads, , ...rest]: Shape, length: number): Form {
  const wire = [length, batch!, heads!, ...rest];
  return { wire, rows: { shape: picked(wire, toRows), strides: picked(contiguousStrides(wire), toRows) } };
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
