import type { Device, DType, KvBlock, Tensor } from "@mosaic/core";
import { rowsOf } from "../attend/views.ts";
import { Holder } from "../holder.ts";
import type { Run } from "./edges.ts";

/** Keys and values, or their gradients, [n,Hkv,S,D] each: views to be disposed. */
export interface Block extends KvBlock, Disposable {}

/** What a block of keys is made of. */
export interface BlockKind {
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly dtype: DType;
}

/**
 * Room for K and V, or dK and dV, of foreign chunks: for each, the batch elements that are wanted, [n,2,Hkv,S,D]. A run of
 * them is dense, so that it travels as one message.
 */
export class ChunkMemory implements Disposable {
  readonly #holder = new Holder();
  readonly #chunks = new Map<number, { readonly places: ReadonlyMap<number, number>; readonly memory: Tensor }>();

  /** Uninitialised. */
  constructor(device: Device, runs: readonly Run[], { numKvHeads, headDim, dtype }: BlockKind) {
    const byChunk = new Map<number, number[]>();
    for (const { chunk, b0, b1 } of runs) {
      const list = byChunk.get(chunk.index) ?? [];
      byChunk.set(chunk.index, list);
      for (let b = b0; b < b1; b++) list.push(b);
    }
    for (const { chunk } of runs) {
      if (this.#chunks.has(chunk.index)) continue;
      const batch = byChunk.get(chunk.index)!;
      const memory = this.#holder.hold(device.empty([batch.length, 2, numKvHeads, chunk.length, headDim], dtype));
      this.#chunks.set(chunk.index, { places: new Map(batch.map((b, place) => [b, place])), memory });
    }
  }

  /** All zeros. */
  clear(): this {
    for (const { memory } of this.#chunks.values()) memory.device.kernels.fill(memory, 0);
    return this;
  }

  /** The run as it travels, dense [b1 − b0,2,Hkv,S,D]. */
  message({ chunk, b0, b1 }: Run): Tensor {
    const { places, memory } = this.#chunks.get(chunk.index)!;
    const first = places.get(b0)!;
    return memory.slice(0, first, first + b1 - b0);
  }

  /** The run as kernels see it, [b1 − b0,Hkv,S,D] each. */
  block(run: Run): Block {
    using message = this.message(run);
    return blockOf(message);
  }

  [Symbol.dispose](): void {
    this.#holder[Symbol.dispose]();
    this.#chunks.clear();
  }
}

/** The two halves of [n,2,Hkv,S,D]. */
export function blockOf(message: Tensor): Block {
  const [n, , numHeads, rows, size] = message.shape as [number, number, number, number, number];
  const [whole, half, ...inner] = message.strides as [number, number, number, number, number];
  const part = (which: number): Tensor =>
    message.view({
      shape: [n, numHeads, rows, size],
      strides: [whole, ...inner],
      offset: message.offset + which * half,
    });
  return block(part(0), part(1));
}

/** A run of this rank's own k and v, or dk and dv. */
export function ownRows({ k, v }: KvBlock, { chunk, b0, b1 }: Run): Block {
  return block(rowsOf(k, chunk, b0, b1), rowsOf(v, chunk, b0, b1));
}

function block(k: Tensor, v: Tensor): Block {
  return { k, v, [Symbol.dispose]: () => [k, v].forEach((tensor) => tensor.dispose()) };
}
