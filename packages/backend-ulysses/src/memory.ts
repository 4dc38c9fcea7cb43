import { contiguousStrides, type Device, type DType, type Shape, Tensor } from "@mosaic/core";
import type { Heads } from "./heads.ts";

// Every tensor here is seen as [B,H,S] or [B,H,S,D]. What travels lies in memory as [S,B,H,D]: the rows of one rank are then
// one stretch of it, which a message can fill or be sent from as it lies.

/** Tensors, disposed together. */
export class Scope implements Disposable {
  readonly #owned: Tensor[] = [];

  own(tensor: Tensor): Tensor {
    this.#owned.push(tensor);
    return tensor;
  }

  /** Uninitialised memory of a shape [B,H,S] or [B,H,S,D], row by row. */
  empty(device: Device, shape: Shape, dtype: DType): Tensor {
    using memory = device.empty(rowsFirst(shape), dtype);
    const strides = contiguousStrides(memory.shape);
    return this.#view(memory, { shape, strides: [strides[1]!, strides[2]!, strides[0]!, ...strides.slice(3)] });
  }

  /** The same in float32, all of one value. */
  filled(device: Device, shape: Shape, value: number): Tensor {
    const tensor = this.empty(device, shape, "float32");
    device.kernels.fill(tensor, value);
    return tensor;
  }

  /** Some heads of x. */
  heads(x: Tensor, { first, count }: Heads): Tensor {
    return this.#view(x, { shape: x.shape.with(1, count), offset: x.offset + (count && first * x.strides[1]!) });
  }

  /** Some rows of x. */
  rows(x: Tensor, first: number, count: number): Tensor {
    return this.#view(x, { shape: x.shape.with(2, count), offset: x.offset + (count && first * x.strides[2]!) });
  }

  /** x as it lies in memory, if it was made here: dense. */
  message(x: Tensor): Tensor {
    return this.#view(x, { shape: rowsFirst(x.shape), strides: rowsFirst(x.strides) });
  }

  /** Without history: these are no operations of anybody's tape. */
  #view(x: Tensor, { shape, strides = x.strides, offset = x.offset }: Look): Tensor {
    const { device, dtype, storage } = x;
    return this.own(new Tensor({ device, dtype, storage, shape, strides, offset }));
  }

  [Symbol.dispose](): void {
    for (const tensor of this.#owned) tensor[Symbol.dispose]();
    this.#owned.length = 0;
  }
}

interface Look {
  readonly shape: Shape;
  readonly strides?: Shape;
  readonly offset?: number;
}

function rowsFirst([batch, heads, rows, ...rest]: Shape): Shape {
  return [rows!, batch!, heads!, ...rest];
}
