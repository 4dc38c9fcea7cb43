import type { Transfer } from "../collectives/process-group.ts";
import { checkDType, checkShape, checkTensor } from "../arguments.ts";
import { type Device, formatDevice } from "../device.ts";
import { expectValue, formatValue, OptionError, ShapeError } from "../errors.ts";
import { contiguousStrides, formatShape, isContiguous, numel, sameShape, type Shape } from "../shape.ts";
import { Tensor } from "../tensor.ts";

/** Tensors with the same rows that are sent together, such as k and v. Each tensor is one message. */
export interface Chunk {
  /** The tensors in attention's axis order: [B,H,S,D] or [B,H,S]. */
  readonly tensors: readonly Tensor[];
  /** The same memory as it is sent: contiguous, in the axis order of the buffers. */
  readonly wire: readonly Tensor[];
}

/**
 * Returns the messages that send a chunk to a rank, for `sendRecv`: one for each tensor.
 *
 * @example
 * ```ts
 * import { init, randn } from "@mosaic/core";
 * import { ChunkBuffers, sendTransfers } from "@mosaic/core/context-parallel";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using k = randn(ctx, [1, 2, 5, 4]);
 * using buffers = new ChunkBuffers({ device: ctx.device });
 * const chunk = buffers.empty([k, k], 3);
 * sendTransfers(chunk, 1).length; // => 2
 * ```
 * @throws OptionError unless `chunk` is a chunk.
 */
export function sendTransfers(chunk: Chunk, to: number): Transfer[] {
  checkChunk("sendTransfers", chunk);
  return chunk.wire.map((tensor) => ({ tensor, to }));
}

/**
 * Returns the messages that receive a chunk from a rank, for `sendRecv`: one for each tensor.
 *
 * @example
 * ```ts
 * import { init, randn } from "@mosaic/core";
 * import { ChunkBuffers, recvTransfers } from "@mosaic/core/context-parallel";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using k = randn(ctx, [1, 2, 5, 4]);
 * using buffers = new ChunkBuffers({ device: ctx.device });
 * const chunk = buffers.empty([k, k], 3);
 * recvTransfers(chunk, 1).length; // => 2
 * ```
 * @throws OptionError unless `chunk` is a chunk.
 */
export function recvTransfers(chunk: Chunk, from: number): Transfer[] {
  checkChunk("recvTransfers", chunk);
  return chunk.wire.map((tensor) => ({ tensor, from }));
}

/** Shapes and dtypes of a chunk's tensors: [B,H,·,D] or [B,H,·]. The number of rows is ignored. */
export type ChunkSpec = readonly Pick<Tensor, "shape" | "dtype">[];

/** Axis order of chunks in memory and in messages: see `ChunkBufferOptions`. */
export type AxisOrder = "bhsd" | "sbhd";

/** Options of `ChunkBuffers`. */
export interface ChunkBufferOptions {
  readonly device: Device;
  /**
   * "bhsd", the default: the axis order of attention. "sbhd": rows are outermost, so that a range of rows is
   * contiguous, and concatenated chunks of several ranks form one chunk.
   */
  readonly order?: AxisOrder;
  /** Capacity of a slot in rows: the length of the longest chunk that it must hold. If absent, slots cannot be used. */
  readonly slotRows?: number;
}

/** Axis permutations for the order "sbhd": from attention's axis order to that of messages (`wire`), and back. */
const permutations = { wire: [2, 0, 1, 3], tensors: [1, 2, 0, 3] } as const;

interface ViewGeometry {
  readonly shape: Shape;
  readonly strides: Shape;
  readonly offset?: number;
}

/** Geometry of one contiguous tensor of a chunk. `tensors` is absent if it equals `wire`. */
interface MemoryLayout {
  readonly wire: ViewGeometry;
  readonly tensors?: ViewGeometry;
}

interface Slot extends Chunk {
  readonly memory: readonly Tensor[];
  readonly rows: number;
}

/**
 * Device memory for the chunks of one call. It owns the chunks that it returns. They are valid until it is disposed or
 * the chunk is released. A collective in flight keeps its memory alive beyond that.
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
  /** Layouts by spec, cached for the last number of rows, which most chunks share. */
  readonly #layouts = new Map<ChunkSpec, { readonly rows: number; readonly layouts: readonly MemoryLayout[] }>();

  constructor(options: ChunkBufferOptions) {
    const { device, order = "bhsd", slotRows = 0 } = options ?? {};
    const isValidDevice = typeof device?.empty === "function";
    const isValidOrder = order === "bhsd" || order === "sbhd";
    expectValue("ChunkBuffers: device", isValidDevice, "a Device, such as cpu()", device);
    expectValue("ChunkBuffers: order", isValidOrder, '"bhsd" or "sbhd"', order);
    checkRows("ChunkBuffers: slotRows", slotRows);
    this.#device = device;
    this.#order = order;
    this.#slotRows = slotRows;
  }

  /** Returns an uninitialized chunk with `rows` rows. */
  empty(spec: ChunkSpec, rows: number): Chunk {
    const layouts = this.#memoryLayouts(spec, rows);
    const wire = layouts.map((layout, i) => this.#device.empty(layout.wire.shape, spec[i]!.dtype));
    return this.#track({ wire, tensors: this.#attentionViews(wire, layouts) });
  }

  /**
   * Returns a chunk with `rows` rows in the memory of this name. The memory is reused and keeps its contents; it is
   * uninitialized at first. All chunks of a name must have equal specs except for rows. Memory is allocated at the
   * first use of a name.
   *
   * @throws ShapeError for more rows than `slotRows`.
   */
  slot(name: string, spec: ChunkSpec, rows: number): Chunk {
    const previousSlot = this.#slots.get(name);
    if (previousSlot !== undefined && previousSlot.rows === rows) return previousSlot;
    checkRows("ChunkBuffers.slot", rows);
    if (rows > this.#slotRows) {
      throw new ShapeError({
        where: `ChunkBuffers.slot ${formatValue(name)}`,
        expected: `at most ${this.#slotRows} rows`,
        received: `${rows}`,
      });
    }
    const layouts = this.#memoryLayouts(spec, rows);
    const memory = previousSlot?.memory ?? spec.map((each) => this.#allocateSlot(each));
    if (memory.length !== layouts.length) {
      throw new ShapeError({
        where: `ChunkBuffers.slot ${formatValue(name)}`,
        expected: `${memory.length} tensors, as in earlier chunks of this name`,
        received: String(layouts.length),
      });
    }
    const wire = memory.map((tensor, i) => createView(tensor, layouts[i]!.wire));
    const slot = this.#track({ memory, rows, wire, tensors: this.#attentionViews(wire, layouts) });
    this.#slots.set(name, slot);
    return slot;
  }

  /** Returns a chunk of zeros that can be read but not sent. Each tensor takes the memory of one element. */
  zeros(spec: ChunkSpec, rows: number): Chunk {
    checkRows("ChunkBuffers.zeros", rows);
    checkChunkSpec("ChunkBuffers.zeros", spec);
    const tensors = spec.map(({ shape, dtype }) => {
      const zeroElement = this.takeOwnership(this.#device.empty([1], dtype));
      this.#device.kernels.fill(zeroElement, 0);
      return createView(zeroElement, { shape: shape.with(2, rows), strides: shape.map(() => 0) });
    });
    return this.#track({ tensors, wire: [] });
  }

  /**
   * Returns the tensors as a chunk: each tensor itself if its memory is contiguous in message order, otherwise a copy.
   */
  contiguous(tensors: readonly Tensor[]): Chunk {
    this.#checkTensors("ChunkBuffers.contiguous", tensors);
    const chunks = tensors.map((tensor): Chunk => {
      const wire = this.#permuteGeometry(tensor, "wire");
      if (!isContiguous(wire.shape, wire.strides)) return this.copy([tensor]);
      return { tensors: [tensor], wire: [this.takeOwnership(createView(tensor, wire))] };
    });
    return { tensors: chunks.map((chunk) => chunk.tensors[0]!), wire: chunks.map(({ wire }) => wire[0]!) };
  }

  /** Copies tensors into a chunk, by default a new one. */
  copy(tensors: readonly Tensor[], outChunk?: Chunk): Chunk {
    const where = "ChunkBuffers.copy";
    this.#checkTensors(where, tensors);
    if (outChunk !== undefined) this.#checkTensors(`${where}: outChunk`, outChunk?.tensors);
    const chunk = outChunk ?? this.empty(tensors, tensors[0]?.shape[2] ?? 0);
    for (const [i, tensor] of tensors.entries()) {
      const target = chunk.tensors[i];
      const hasSameShape = target !== undefined && sameShape(target.shape, tensor.shape);
      if (!hasSameShape)
        expectValue(where, false, `a chunk with shape ${formatShape(tensor.shape)} for tensor ${i}`, target?.shape);
      this.#device.kernels.copy(target!, tensor);
    }
    return chunk;
  }

  /**
   * Returns a view of `count` rows of a chunk, starting at `first`. Only for the order "sbhd", in which rows are
   * contiguous.
   */
  narrow(chunk: Chunk, first: number, count: number): Chunk {
    checkChunk("ChunkBuffers.narrow", chunk);
    checkRows("ChunkBuffers.narrow: first", first);
    checkRows("ChunkBuffers.narrow: count", count);
    const wireViews = chunk.wire.map((tensor) => {
      checkTensor("ChunkBuffers.narrow", tensor);
      const { shape, strides, offset } = tensor;
      const isInBounds = first + count <= shape[0]!;
      if (!isInBounds) expectValue("ChunkBuffers.narrow", false, `rows within ${shape[0]}`, [first, count]);
      const start = count > 0 ? first * strides[0]! : 0;
      return createView(tensor, { shape: shape.with(0, count), strides, offset: offset + start });
    });
    return this.#track({
      wire: wireViews,
      tensors: wireViews.map((tensor) => createView(tensor, this.#permuteGeometry(tensor, "tensors"))),
    });
  }

  /** Takes ownership of a tensor, which is disposed with the buffers. */
  takeOwnership(tensor: Tensor): Tensor {
    checkTensor("ChunkBuffers.takeOwnership", tensor);
    this.#tensors.push(tensor);
    return tensor;
  }

  /**
   * Releases the memory of a chunk early. Does nothing for a chunk from `contiguous`, whose tensors may be the
   * caller's.
   */
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

  #memoryLayouts(spec: ChunkSpec, rows: number): readonly MemoryLayout[] {
    const cachedLayouts = this.#layouts.get(spec);
    if (cachedLayouts !== undefined && cachedLayouts.rows === rows) return cachedLayouts.layouts;
    checkChunkSpec("ChunkBuffers", spec);
    checkRows("ChunkBuffers", rows);
    const layouts = spec.map(({ shape }) => this.#memoryLayout(shape.with(2, rows)));
    this.#layouts.set(spec, { rows, layouts });
    return layouts;
  }

  #memoryLayout(shape: Shape): MemoryLayout {
    if (this.#order === "bhsd") return { wire: { shape, strides: contiguousStrides(shape) } };
    const wire = permuteSizes(shape, permutations.wire);
    const strides = contiguousStrides(wire);
    return { wire: { shape: wire, strides }, tensors: { shape, strides: permuteSizes(strides, permutations.tensors) } };
  }

  /** Throws unless all tensors are on this device and have the shape [B,H,S,D] or [B,H,S]. */
  #checkTensors(where: string, tensors: readonly Tensor[]): void {
    expectValue(where, Array.isArray(tensors), "an array of tensors", tensors);
    for (let i = 0; i < tensors.length; i++) {
      checkTensor(where, tensors[i]);
      const { device } = tensors[i]!;
      if (device === this.#device) continue;
      throw new OptionError({
        where,
        expected: `tensors on the device of the buffers, ${formatDevice(this.#device)}`,
        received: `a tensor on ${formatDevice(device)}${device.type === this.#device.type ? " of a different Device instance" : ""}`,
      });
    }
    checkChunkSpec(where, tensors);
  }

  #attentionViews(wire: readonly Tensor[], layouts: readonly MemoryLayout[]): readonly Tensor[] {
    if (this.#order === "bhsd") return wire;
    return wire.map((tensor, i) => createView(tensor, layouts[i]!.tensors!));
  }

  #permuteGeometry({ shape, strides }: Tensor, layout: keyof typeof permutations): ViewGeometry {
    if (this.#order === "bhsd") return { shape, strides };
    return { shape: permuteSizes(shape, permutations[layout]), strides: permuteSizes(strides, permutations[layout]) };
  }

  #track<T extends Chunk>(chunk: T): T {
    this.#chunks.add(chunk);
    return chunk;
  }
}

/**
 * Throws an OptionError unless `chunk` has an array of tensors to send. The group that sends them checks the tensors.
 */
function checkChunk(where: string, chunk: unknown): asserts chunk is Pick<Chunk, "wire"> {
  if (!Array.isArray((chunk as Partial<Chunk> | null | undefined)?.wire)) {
    expectValue(where, false, "a Chunk { tensors, wire }", chunk);
  }
}

function checkRows(where: string, rows: unknown): void {
  if (Number.isSafeInteger(rows) && (rows as number) >= 0) return;
  expectValue(where, false, "an integer number of rows ≥ 0", rows);
}

/** Throws an OptionError or ShapeError unless `spec` is valid. */
function checkChunkSpec(where: string, spec: unknown): void {
  expectValue(where, Array.isArray(spec), "an array of { shape, dtype }", spec);
  for (const tensorSpec of spec as readonly unknown[]) {
    const { shape, dtype } = (tensorSpec ?? {}) as Partial<ChunkSpec[number]>;
    const isChunkShape = Array.isArray(shape) && (shape.length === 3 || shape.length === 4);
    expectValue(where, isChunkShape, "[B,H,S,D] or [B,H,S]", isChunkShape ? tensorSpec : (shape ?? tensorSpec));
    checkShape(where, shape);
    checkDType(where, dtype);
  }
}

/** Creates a view that is not recorded on the autograd tape. */
function createView(
  { device, dtype, storage, offset: tensorOffset }: Tensor,
  { shape, strides, offset = tensorOffset }: ViewGeometry,
): Tensor {
  return new Tensor({ device, dtype, storage, shape, strides, offset });
}

/**
 * Returns a view of rows [from, to) of x [B,H,S,D] or [B,H,S].
 *
 * @example
 * ```ts
 * import { init, randn } from "@mosaic/core";
 * import { rowsOf } from "@mosaic/core/context-parallel";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using k = randn(ctx, [1, 2, 5, 4]);
 * using last = rowsOf(k, 3, 5);
 * last.shape; // => [1, 2, 2, 4]
 * ```
 * @throws ShapeError unless 0 ≤ from ≤ to ≤ S.
 */
export function rowsOf(x: Tensor, from: number, to: number): Tensor {
  checkTensor("rowsOf", x);
  const rows = x.shape[2] ?? 0;
  const isValidRange = Number.isSafeInteger(from) && Number.isSafeInteger(to) && 0 <= from && from <= to && to <= rows;
  if (!isValidRange)
    throw new ShapeError({
      where: "rowsOf",
      expected: `rows within ${rows}`,
      received: `[${formatValue(from)}, ${formatValue(to)})`,
    });
  const offset = x.offset + (to > from ? from * x.strides[2]! : 0);
  return x.view({ shape: x.shape.with(2, to - from), offset });
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
