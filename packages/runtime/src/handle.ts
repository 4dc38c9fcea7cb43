import {
  ClosedError,
  type DType,
  dtypeBytes,
  errorFromFailure,
  formatShape,
  numel,
  OutOfMemoryError,
  type Shape,
} from "@mosaic/core";
import { FreeLists } from "./free-lists.ts";
import type { KernelCall } from "./kernel-arguments.ts";
import { type DeviceCalls, type External, type NativeRuntime, translateErrors } from "./runtime.ts";
import type { ArgumentBuffer } from "./argument-buffer.ts";
import { type BlockOwner, type MemoryBlock, NativeStorage } from "./storage.ts";

/** How a native device is opened. */
export interface HandleOptions {
  /** Name shown in error messages: "cpu:0". */
  readonly name: string;
  /** Numbers for `open`, in its order. */
  readonly options: readonly number[];
  /** What to do when memory runs out. */
  readonly remedy: string;
  /**
   * Sizes of blocks are multiples of so many bytes, a power of two, and `allocate` returns them: freed blocks are then kept
   * in JavaScript, and what is allocated is counted there. Absent: every allocation is the addon's.
   */
  readonly granularity?: number;
}

/** What a block is freed by when its storage was collected. It must not refer to the block. */
type LeakedBlock = Pick<MemoryBlock, "id" | "byteLength">;

/** Changes of this size are reported to V8, whose garbage collector accounts for native memory. */
const REPORT_THRESHOLD_BYTES = 4 * 2 ** 20;

/** A native device, as the parts of its JavaScript use it. */
export class NativeHandle<Native extends DeviceCalls = DeviceCalls> implements BlockOwner {
  readonly name: string;
  readonly native: Native;
  /** The address of the device, by which another device's stream may wait for it. */
  readonly address: number;
  readonly streamAddress: bigint;
  /** What `open` returned beside the two addresses, in the order of the addon. */
  readonly deviceInfo: readonly number[];
  readonly #runtime: NativeRuntime<Native>;
  readonly #external: External;
  readonly #remedy: string;
  readonly #freeLists: FreeLists | undefined;
  /** Blocks, not tensors: a block is registered once, and then serves thousands of them. */
  readonly #leakRegistry = new FinalizationRegistry<LeakedBlock>((leakedBlock) => this.#freeLeak(leakedBlock));
  /** Bytes of blocks that storages hold, now and at most. */
  #allocatedBytes = 0;
  #peakBytes = 0;
  #isClosed = false;
  /** Bytes of blocks that the addon holds, of those that V8 should account for, and of those that were reported to it. */
  #nativeBytes = 0;
  #externalBytes = 0;
  #reportedBytes = 0;

  constructor(runtime: NativeRuntime<Native>, { name, options, remedy, granularity }: HandleOptions) {
    this.name = name;
    this.#runtime = runtime;
    this.#remedy = remedy;
    this.#freeLists = granularity === undefined ? undefined : new FreeLists(granularity);
    this.native = runtime.native;
    const { values } = runtime.argumentBuffer;
    for (const [i, option] of options.entries()) values[i] = option;
    this.#external = translateErrors(() => this.native.open());
    this.address = values[0]!;
    this.streamAddress = BigInt(values[1]!);
    this.deviceInfo = [...values.subarray(2, 6)];
  }

  /** Results of the last native call. */
  get results(): Float64Array {
    return this.#runtime.argumentBuffer.values;
  }

  /** The argument buffer, ready for the arguments of a call. */
  begin(where: string): ArgumentBuffer {
    if (this.#isClosed) this.#rejectClosed(where);
    return this.#runtime.argumentBuffer.begin(this, this.address, where);
  }

  /** Makes a call that submits work; throws the stream's failure if it has failed. */
  launch(call: KernelCall): void {
    translateErrors(call);
    if (this.results[0] !== 0) throw this.#createFailure();
  }

  /** Makes a call that a completion answers. */
  expect(
    where: string,
    retainedObjects: unknown,
    call: (completion: number, args: ArgumentBuffer) => void,
  ): Promise<void> {
    return this.#runtime.completions.expect(retainedObjects, (completion) => {
      const args = this.begin(where).number(completion);
      translateErrors(() => call(completion, args));
    });
  }

  #createFailure(): Error {
    this.results[0] = this.address;
    const [code, message] = this.native.failure() ?? [1, "the device failed"];
    return errorFromFailure(code, message);
  }

  /** Memory for a dense tensor. */
  allocate(shape: Shape, dtype: DType): NativeStorage {
    const byteLength = numel(shape) * dtypeBytes[dtype];
    const block = this.#freeLists?.takeBlock(byteLength) ?? this.#allocateBlock(byteLength, shape, dtype);
    this.#allocatedBytes += block.byteLength;
    if (this.#allocatedBytes > this.#peakBytes) this.#peakBytes = this.#allocatedBytes;
    return new NativeStorage(this, block, byteLength);
  }

  #allocateBlock(byteLength: number, shape: Shape, dtype: DType): MemoryBlock {
    const where = `empty ${formatShape(shape)} ${dtype}`;
    this.begin(where);
    // Beyond, numbers mean nothing in native code: an element more would lie outside of what it gives.
    if (!Number.isSafeInteger(byteLength) || byteLength < 0) throw this.#createOutOfMemoryError(byteLength, where);
    let block = this.#allocateNative(byteLength, where);
    if (block === undefined && this.#emptyFreeLists() > 0) block = this.#allocateNative(byteLength, where);
    if (block === undefined) throw this.#createOutOfMemoryError(byteLength, where);
    this.#leakRegistry.register(block, { id: block.id, byteLength: block.byteLength }, block);
    this.#nativeBytes += block.byteLength;
    this.#reportBytes(Math.max(this.#externalBytes, this.#nativeBytes));
    return block;
  }

  #allocateNative(byteLength: number, where: string): MemoryBlock | undefined {
    this.begin(where).number(byteLength);
    translateErrors(this.native.allocate);
    const [address, id, blockBytes] = this.results;
    if (address === 0) return undefined;
    return { address: address!, id: id!, byteLength: this.#freeLists === undefined ? byteLength : blockBytes! };
  }

  /** Takes a block back from its storage. */
  reclaim(block: MemoryBlock): void {
    if (this.#isClosed) return; // all memory went with the device
    this.#allocatedBytes -= block.byteLength;
    if (this.#freeLists?.putBlock(block) !== true) this.#freeBlock(block);
  }

  #freeBlock(block: MemoryBlock): void {
    this.#leakRegistry.unregister(block);
    this.#freeNative(block);
  }

  #freeLeak(leakedBlock: LeakedBlock): void {
    if (this.#isClosed) return;
    this.#allocatedBytes -= leakedBlock.byteLength;
    this.#freeNative(leakedBlock);
    this.#reportBytes(Math.max(this.#externalBytes - leakedBlock.byteLength, this.#nativeBytes));
  }

  #freeNative({ id, byteLength }: LeakedBlock): void {
    this.begin("free").number(id).number(byteLength);
    this.native.free();
    this.#nativeBytes -= byteLength;
  }

  /** Gives what the free lists hold to the addon, which joins neighbours; returns how many bytes. */
  #emptyFreeLists(): number {
    const bytes = this.#freeLists?.bytes ?? 0;
    if (bytes > 0) for (const block of this.#freeLists!.clear()) this.#freeBlock(block);
    return bytes;
  }

  /** Gives cached memory that no storage uses back to the system, in stream order. */
  trim(): void {
    this.begin("trim");
    this.#emptyFreeLists();
    this.begin("trim");
    this.native.trim();
    this.#reportBytes(this.#nativeBytes);
  }

  /**
   * V8 collects all garbage whenever external memory has grown by some tens of MB. Memory that is disposed of is mostly allocated
   * again, in every training step, and stays reported; memory that was lost does not, so that what is lost next is found as early.
   */
  #reportBytes(externalBytes: number): void {
    this.#externalBytes = externalBytes;
    if (Math.abs(externalBytes - this.#reportedBytes) < REPORT_THRESHOLD_BYTES) return;
    this.#reportedBytes = externalBytes;
    this.begin("account").number(externalBytes);
    this.native.account(this.#external);
  }

  /** Bytes: allocated, reserved, peak, limit, scratch. */
  memory(): readonly [number, number, number, number, number] {
    this.begin("memory");
    // An addon whose kernels hold nothing of their own leaves it.
    this.results[4] = 0;
    this.native.memory();
    const [allocated, reserved, peak, limit, scratch] = this.results;
    if (this.#freeLists === undefined) return [allocated!, reserved!, peak!, limit!, scratch!];
    return [this.#allocatedBytes, reserved!, this.#peakBytes, limit!, scratch!];
  }

  /** Counts the most that is allocated at once anew. */
  resetPeak(): void {
    this.begin("resetPeakMemory");
    this.native.resetPeak();
    this.#peakBytes = this.#allocatedBytes;
  }

  /** What was submitted still runs, then all memory goes. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    for (const block of this.#freeLists?.clear() ?? []) this.#leakRegistry.unregister(block);
    this.native.close(this.#external);
  }

  #createOutOfMemoryError(byteLength: number, where: string): OutOfMemoryError {
    const [allocated, reserved, , limit, scratch] = this.memory();
    const scratchText = scratch > 0 ? `, ${formatMebibytes(scratch)} held by kernels` : "";
    const limitText = limit > 0 ? `, the limit is ${formatMebibytes(limit)}` : "";
    return new OutOfMemoryError({
      where: `${this.name}: ${where}`,
      expected: `${formatMebibytes(byteLength)} of free memory`,
      received: `${formatMebibytes(allocated)} in use and ${formatMebibytes(reserved)} reserved${scratchText}${limitText}`,
      remedy: this.#remedy,
    });
  }

  #rejectClosed(where: string): never {
    throw new ClosedError({
      where,
      expected: "an open device",
      received: `${this.name} after dispose`,
      remedy: "dispose a device, or close its context, after its last use",
    });
  }
}

function formatMebibytes(bytes: number): string {
  return `${(bytes / 2 ** 20).toFixed(bytes < 2 ** 20 ? 3 : 1)} MiB`;
}
