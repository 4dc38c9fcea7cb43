import { ClosedError, type DType, dtypeBytes, formatShape, numel, OutOfMemoryError, type Shape } from "@mosaic/core";
import { areStacksRecorded, recordKernel } from "./call-stacks.ts";
import { closeWhenUnused } from "./device-uses.ts";
import { FreeLists } from "./free-lists.ts";
import type { KernelCall } from "./kernel-arguments.ts";
import { type DeviceCalls, type External, type NativeRuntime, reportFailure, translateErrors } from "./runtime.ts";
import type { ArgumentBuffer } from "./argument-buffer.ts";
import { type BlockOwner, type MemoryBlock, NativeStorage } from "./storage.ts";

/** Options to open a native device. */
export interface HandleOptions {
  /** Name for error messages, for example "cpu:0". */
  readonly name: string;
  /** Arguments of the addon's `open`. */
  readonly options: readonly number[];
  /** Remedy for OutOfMemoryError. */
  readonly remedy: string;
  /**
   * Block sizes are multiples of this many bytes, a power of two, and the addon's `allocate` returns them. Freed blocks
   * are then cached in JavaScript, and allocated bytes are counted there. If absent, every allocation calls the addon.
   */
  readonly granularity?: number;
}

/** Data to free a block whose storage was garbage-collected. It must not refer to the block. */
type LeakedBlock = Pick<MemoryBlock, "id" | "byteLength">;

/** Smaller changes are not reported to V8, whose garbage collector accounts for native memory. */
const REPORT_THRESHOLD_BYTES = 4 * 2 ** 20;

/** Handle of a native device, which the JavaScript parts of the device share. */
export class NativeHandle<Native extends DeviceCalls = DeviceCalls> implements BlockOwner {
  readonly name: string;
  readonly native: Native;
  /** Address of the native device. A stream of another device may use it to wait for this device. */
  readonly address: number;
  readonly streamAddress: bigint;
  /** Results of the addon's `open` after the two addresses. */
  readonly deviceInfo: readonly number[];
  readonly #runtime: NativeRuntime<Native>;
  readonly #external: External;
  readonly #remedy: string;
  readonly #freeLists: FreeLists | undefined;
  /** Tracks blocks rather than tensors, because a block is registered once and then reused for thousands of tensors. */
  readonly #leakRegistry = new FinalizationRegistry<LeakedBlock>((leakedBlock) => this.#freeLeak(leakedBlock));
  /** Bytes of blocks that storages hold, now and at the peak. */
  #allocatedBytes = 0;
  #peakBytes = 0;
  #isClosed = false;
  /**
   * Bytes of the blocks that the addon has allocated, bytes that V8 should account for, and bytes last reported to V8.
   */
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

  /** Returns the argument buffer, ready for the arguments of a call. */
  begin(where: string): ArgumentBuffer {
    if (this.#isClosed) this.#rejectClosed(where);
    return this.#runtime.argumentBuffer.begin(this, this.address, where);
  }

  /** Makes a call that submits work; throws the stream's failure if it has failed. */
  launch(call: KernelCall): void {
    if (areStacksRecorded) recordKernel(this.#runtime.argumentBuffer.where);
    translateErrors(call);
    if (this.results[0] !== 0) throw this.#createFailure();
  }

  /** Makes an asynchronous call, whose completion settles the promise. */
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
    return reportFailure(code, message);
  }

  /** Allocates memory for a dense tensor. */
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
    // Larger sizes are not exact as doubles, so native code could allocate less than was requested.
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

  /** Takes a block back from its storage, to cache or free it. */
  reclaim(block: MemoryBlock): void {
    if (this.#isClosed) return; // closing the device has freed all memory
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

  /** Returns all blocks of the free lists to the addon, which merges adjacent blocks. Returns their total bytes. */
  #emptyFreeLists(): number {
    const bytes = this.#freeLists?.bytes ?? 0;
    if (bytes > 0) for (const block of this.#freeLists!.clear()) this.#freeBlock(block);
    return bytes;
  }

  /** Returns cached memory that no storage uses to the system, in stream order. */
  trim(): void {
    this.begin("trim");
    this.#emptyFreeLists();
    this.begin("trim");
    this.native.trim();
    this.#reportBytes(this.#nativeBytes);
  }

  /**
   * V8 runs a full collection whenever reported external memory has grown by some tens of MB. Disposed memory stays
   * reported, because training steps allocate it again; memory of collected leaks is unreported, so that the next leaks
   * are found as early.
   */
  #reportBytes(externalBytes: number): void {
    this.#externalBytes = externalBytes;
    if (Math.abs(externalBytes - this.#reportedBytes) < REPORT_THRESHOLD_BYTES) return;
    this.#reportedBytes = externalBytes;
    this.begin("account").number(externalBytes);
    this.native.account(this.#external);
  }

  /** Returns, in bytes: allocated, reserved, peak, limit, scratch. */
  memory(): readonly [number, number, number, number, number] {
    this.begin("memory");
    // Addons whose kernels allocate no scratch memory do not write this result.
    this.results[4] = 0;
    this.native.memory();
    const [allocated, reserved, peak, limit, scratch] = this.results;
    if (this.#freeLists === undefined) return [allocated!, reserved!, peak!, limit!, scratch!];
    return [this.#allocatedBytes, reserved!, this.#peakBytes, limit!, scratch!];
  }

  /** Resets the peak of allocated bytes to the current value. */
  resetPeak(): void {
    this.begin("resetPeakMemory");
    this.native.resetPeak();
    this.#peakBytes = this.#allocatedBytes;
  }

  /** Lets submitted work finish, then frees all memory. Ranks that use the native device close first. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    for (const block of this.#freeLists?.clear() ?? []) this.#leakRegistry.unregister(block);
    closeWhenUnused(this.streamAddress, () => this.native.close(this.#external));
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
