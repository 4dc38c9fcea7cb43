import { contiguousStrides, type Shape, sizeOf, Tensor } from "@mosaic/core";

/** K and V, or dK and dV: [B,Hkv,S,D] each. They travel together. */
export type Chunk = readonly [Tensor, Tensor];

/**
 * The device memory of one pass around a ring: numbered slots that are used again and again. Chunks differ in length, so
 * a slot has room for the longest, and hands out dense views of its beginning. What is never asked for costs nothing;
 * what is handed out lives until this is disposed.
 */
export class ChunkMemory implements Disposable {
  readonly #like: Chunk;
  readonly #longest: number;
  readonly #slots = new Map<number, readonly Tensor[]>();
  /** What each slot showed last: most chunks are of one length, and so is the view of them. */
  readonly #shown = new Map<number, Chunk>();
  readonly #owned: Tensor[] = [];

  /** `like` has the device, dtypes, and all sizes but the length; `longest` is the largest length a slot must hold. */
  constructor(like: Chunk, longest: number) {
    this.#like = like;
    this.#longest = longest;
  }

  /** Memory for a chunk of `length` keys, uninitialised at first; the same for the same number. */
  slot(number: number, length: number): Chunk {
    const last = this.#shown.get(number);
    if (last?.[0].shape[2] === length) return last;
    let members = this.#slots.get(number);
    if (members === undefined) {
      const room = sizeOf(this.#shape(this.#longest));
      members = this.#like.map(({ device, dtype }) => this.#own(device.empty([room], dtype)));
      this.#slots.set(number, members);
    }
    const shape = this.#shape(length);
    const chunk = this.#chunk((i) => viewOf(members[i]!, shape, contiguousStrides(shape)));
    this.#shown.set(number, chunk);
    return chunk;
  }

  /** A chunk of zeros that takes the memory of two numbers. */
  zeros(length: number): Chunk {
    return this.#chunk((i) => {
      const { device, dtype } = this.#like[i];
      const zero = this.#own(device.empty([1], dtype));
      device.kernels.fill(zero, 0);
      return viewOf(zero, this.#shape(length), [0, 0, 0, 0]);
    });
  }

  /** The chunk itself where it is dense, copies where it is not: messages are flat. */
  dense(chunk: Chunk): Chunk {
    return this.#chunk((i) => {
      const { device, shape, dtype, isContiguous } = chunk[i];
      if (isContiguous) return viewOf(chunk[i], shape, contiguousStrides(shape));
      const copy = device.empty(shape, dtype);
      device.kernels.copy(copy, chunk[i]);
      return copy;
    });
  }

  #shape(length: number): Shape {
    const [batch, heads, , headDim] = this.#like[0].shape;
    return [batch!, heads!, length, headDim!];
  }

  #chunk(member: (i: 0 | 1) => Tensor): Chunk {
    return [this.#own(member(0)), this.#own(member(1))];
  }

  #own(tensor: Tensor): Tensor {
    this.#owned.push(tensor);
    return tensor;
  }

  [Symbol.dispose](): void {
    for (const tensor of this.#owned) tensor[Symbol.dispose]();
    this.#owned.length = 0;
    this.#slots.clear();
    this.#shown.clear();
  }
}

function viewOf({ device, dtype, storage, offset }: Tensor, shape: Shape, strides: Shape): Tensor {
  return new Tensor({ device, dtype, storage, offset, shape, strides });
}
