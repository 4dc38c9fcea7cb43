import type { Transfer } from "../collectives/process-group.ts";
import type { Device } from "../device.ts";
import { ShapeError } from "../errors.ts";
import { contiguousStrides, isContiguous, type Shape, numel } from "../shape.ts";
import { Tensor } from "../tensor.ts";

/** Tensors of the same rows that travel together, such as k and v; a message each. */
export interface Chunk {
  /** As attention sees them: [B,H,S,D] or [B,H,S]. */
  readonly tensors: readonly Tensor[];
  /** The same memory as messages see it: dense, in the order of the buffers. */
  readonly wire: readonly Tensor[];
}

/** Messages that send a chunk to a rank. */
export function sendTransfers({ wire }: Chunk, to: number): Transfer[] {
  return wire.map((tensor) => ({ tensor, to }));
}

/** Messages that fill a chunk with what a rank sends. */
export function recvTransfers({ wire }: Chunk, from: number): Transfer[] {
  return wire.map((tensor) => ({ tensor, from }));
}

/** What a chunk is made like: an entry for each tensor, [B,H,·,D] or [B,H,·] with any number of rows. */
export type ChunkSpec = readonly Pick<Tensor, "shape" | "dtype">[];

/** How chunks lie in memory, and in messages: see `ChunkBufferOptions`. */
export type AxisOrder = "bhsd" | "sbhd";

export interface ChunkBufferOptions {
  readonly device: Device;
  /**
   * "bhsd", if absent: chunks lie in memory as attention sees them. "sbhd": rows are outermost, so that some rows of a chunk
   * are dense, and chunks of several ranks, one after another, are one chunk.
   */
  readonly order?: AxisOrder;
  /** Rows that a slot has room for: those of the longest chunk that comes. Without it there are no slots. */
  readonly slotRows?: number;
}

/** Axes of what attention sees in the order of messages, and back, for the order "sbhd". */
const permutations = { wire: [2, 0, 1, 3], tensors: [1, 2, 0, 3] } as const;

interface ViewGeometry {
  readonly shape: Shape;
  readonly strides: Shape;
  readonly offset?: number;
}

/** One tensor of a chunk, dense; `tensors` is absent where both are the same. */
interface MemoryLayout {
  readonly wire: ViewGeometry;
  readonly tensors?: ViewGeometry;
}

interface Slot extends Chunk {
  readonly memory: readonly Tensor[];
  readonly rows: number;
}

/**
 * Device memory for the chunks of one call. What it hands out belongs to it, and lives until it is disposed or the chunk
 * released; a collective under way keeps its memory alive all the same.
 *
 * @example
 * ```ts
 * import { init, randn } from "@mosaic/core";
 * import { ChunkBuffers } from "@mosaic/core/context-parallel";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using k = randn(ctx, [1, 2, 5, 4]);
 * using buffers = new ChunkBuffers({ device: ctx.device, order: "sbhd" });
 * const { tensors, wire } = buffers.empty([k, k], 3);
 * tensors[0]!.shape; // => [1, 2, 3, 4]
 * wire[0]!.shape; // => [3, 1, 2, 4]
 * ```
 */
export class ChunkBuffers implements Disposable {
  readonly #device: Device;
  readonly #order: AxisOrder;
  readonly #slotRows: number;
  readonly #chunks = new Set<Chunk>();
  #tensors: Tensor[] = [];
  readonly #slots = new Map<string, Slot>();
  /** By what chunks are like; for the last number of rows, which most of them share. */
  readonly #layouts = new Map<ChunkSpec, { readonly rows: number; readonly layouts: readonly MemoryLayout[] }>();

  constructor({ device, order = "bhsd", slotRows = 0 }: ChunkBufferOptions) {
    this.#device = device;
    this.#order = order;
    this.#slotRows = slotRows;
  }

  /** An uninitialised chunk of so many rows. */
  empty(like: ChunkSpec, rows: number): Chunk {
    const layouts = this.#layoutsOf(like, rows);
    const wire = layouts.map((layout, i) => this.#device.empty(layout.wire.shape, like[i]!.dtype));
    return this.#track({ wire, tensors: this.#attentionViews(wire, layouts) });
  }

  /**
   * A chunk of so many rows in the memory of that name, which is used again and again: what was left there, uninitialised at
   * first. All chunks of a name are alike but for their rows. A name that is never used takes no memory.
   *
   * @throws ShapeError for more rows than `slotRows`.
   */
  slot(name: string, like: ChunkSpec, rows: number): Chunk {
    const last = this.#slots.get(name);
    if (last?.rows === rows) return last;
    if (rows > this.#slotRows) {
      throw new ShapeError({
        where: `slot "${name}"`,
        expected: `at most ${this.#slotRows} rows`,
        received: `${rows}`,
      });
    }
    const memory = last?.memory ?? like.map((each) => this.#allocateSlot(each));
    const layouts = this.#layoutsOf(like, rows);
    const wire = memory.map((tensor, i) => viewOf(tensor, layouts[i]!.wire));
    const slot = this.#track({ memory, rows, wire, tensors: this.#attentionViews(wire, layouts) });
    this.#slots.set(name, slot);
    return slot;
  }

  /** Zeros to read, not to send, which take the memory of one number a tensor. */
  zeros(like: ChunkSpec, rows: number): Chunk {
    const tensors = like.map(({ shape, dtype }) => {
      const zero = this.takeOwnership(this.#device.empty([1], dtype));
      this.#device.kernels.fill(zero, 0);
      return viewOf(zero, { shape: shape.with(2, rows), strides: shape.map(() => 0) });
    });
    return this.#track({ tensors, wire: [] });
  }

  /** These tensors as a chunk: each itself if it lies in memory as messages do, or else a copy. */
  contiguous(tensors: readonly Tensor[]): Chunk {
    const members = tensors.map((tensor): Chunk => {
      const wire = this.#permuted(tensor, "wire");
      if (!isContiguous(wire.shape, wire.strides)) return this.copy([tensor]);
      return { tensors: [tensor], wire: [this.takeOwnership(viewOf(tensor, wire))] };
    });
    return { tensors: members.map((member) => member.tensors[0]!), wire: members.map(({ wire }) => wire[0]!) };
  }

  /** Copies tensors into a chunk, by default a new one. */
  copy(tensors: readonly Tensor[], into: Chunk = this.empty(tensors, tensors[0]!.shape[2]!)): Chunk {
    for (const [i, tensor] of tensors.entries()) this.#device.kernels.copy(into.tensors[i]!, tensor);
    return into;
  }

  /** `count` rows of a chunk, from `first` on. Dense in the order "sbhd" only. */
  narrow({ wire }: Chunk, first: number, count: number): Chunk {
    const part = wire.map((tensor) => {
      const { shape, strides, offset } = tensor;
      const start = count > 0 ? first * strides[0]! : 0;
      return viewOf(tensor, { shape: shape.with(0, count), strides, offset: offset + start });
    });
    return this.#track({
      wire: part,
      tensors: part.map((tensor) => viewOf(tensor, this.#permuted(tensor, "tensors"))),
    });
  }

  /** Takes a tensor over, to be disposed with all others. */
  takeOwnership(tensor: Tensor): Tensor {
    this.#tensors.push(tensor);
    return tensor;
  }

  /** Gives the memory of a chunk back before all else. One that `contiguous` made stays: some of it may be the caller's. */
  release(chunk: Chunk): void {
    if (this.#chunks.delete(chunk)) dispose(chunk);
  }

  [Symbol.dispose](): void {
    for (const chunk of this.#chunks) dispose(chunk);
    for (const tensor of this.#tensors) tensor.dispose();
    this.#chunks.clear();
    this.#tensors = [];
    this.#slots.clear();
  }

  #allocateSlot({ shape, dtype }: ChunkSpec[number]): Tensor {
    return this.takeOwnership(this.#device.empty([numel(shape.with(2, this.#slotRows))], dtype));
  }

  #layoutsOf(like: ChunkSpec, rows: number): readonly MemoryLayout[] {
    const last = this.#layouts.get(like);
    if (last?.rows === rows) return last.layouts;
    const layouts = like.map(({ shape }) => this.#layoutOf(shape.with(2, rows)));
    this.#layouts.set(like, { rows, layouts });
    return layouts;
  }

  #layoutOf(shape: Shape): MemoryLayout {
    if (this.#order === "bhsd") return { wire: { shape, strides: contiguousStrides(shape) } };
    const wire = permuteSizes(shape, permutations.wire);
    const strides = contiguousStrides(wire);
    return { wire: { shape: wire, strides }, tensors: { shape, strides: permuteSizes(strides, permutations.tensors) } };
  }

  #attentionViews(wire: readonly Tensor[], layouts: readonly MemoryLayout[]): readonly Tensor[] {
    if (this.#order === "bhsd") return wire;
    return wire.map((tensor, i) => viewOf(tensor, layouts[i]!.tensors!));
  }

  #permuted({ shape, strides }: Tensor, to: keyof typeof permutations): ViewGeometry {
    if (this.#order === "bhsd") return { shape, strides };
    return { shape: permuteSizes(shape, permutations[to]), strides: permuteSizes(strides, permutations[to]) };
  }

  #track<T extends Chunk>(chunk: T): T {
    this.#chunks.add(chunk);
    return chunk;
  }
}

/** Without history: these are no operations of anybody's tape. */
function viewOf(
  { device, dtype, storage, offset: own }: Tensor,
  { shape, strides, offset = own }: ViewGeometry,
): Tensor {
  return new Tensor({ device, dtype, storage, shape, strides, offset });
}

function dispose({ tensors, wire }: Chunk): void {
  for (const tensor of wire) tensor.dispose();
  if (tensors !== wire) for (const tensor of tensors) tensor.dispose();
}

function permuteSizes(sizes: Shape, order: readonly number[]): number[] {
  const result: number[] = [];
  for (let axis = 0; axis < sizes.length; axis++) result.push(sizes[order[axis]!]!);
  return result;
}
