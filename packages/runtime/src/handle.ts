import { ClosedError, OutOfMemoryError, errorFromFailure } from "@mosaic/core";
import type { KernelCall } from "./kernel-arguments.ts";
import { type DeviceCalls, type External, type NativeRuntime, translateErrors } from "./runtime.ts";
import type { ArgumentBuffer } from "./argument-buffer.ts";
import { NativeStorage } from "./storage.ts";

/** How a native device is opened. */
export interface HandleOptions {
  /** As it shall stand in messages: "cpu:0". */
  readonly name: string;
  /** Numbers for `open`, in its order. */
  readonly options: readonly number[];
  /** What to do when memory runs out. */
  readonly remedy: string;
}

/** Changes in native memory of this size are reported to V8, whose garbage collector accounts for them. */
const accountBytes = 4 * 2 ** 20;

/** A native device, as the parts of its JavaScript use it. */
export class NativeHandle<Native extends DeviceCalls = DeviceCalls> {
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
  #closed = false;
  #unaccounted = 0;

  constructor(runtime: NativeRuntime<Native>, { name, options, remedy }: HandleOptions) {
    this.name = name;
    this.#runtime = runtime;
    this.#remedy = remedy;
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
    if (this.#closed) this.#rejectClosed(where);
    return this.#runtime.argumentBuffer.begin(this, this.address, where);
  }

  /** Makes a call that submits work; throws the stream's failure if it has failed. */
  launch(call: KernelCall): void {
    translateErrors(call);
    if (this.results[0] !== 0) throw this.#failure();
  }

  /** Makes a call that a completion answers. */
  expect(where: string, held: unknown, call: (completion: number, args: ArgumentBuffer) => void): Promise<void> {
    return this.#runtime.completions.expect(held, (completion) => {
      const args = this.begin(where).number(completion);
      translateErrors(() => call(completion, args));
    });
  }

  #failure(): Error {
    this.results[0] = this.address;
    const [code, message] = this.native.failure() ?? [1, "the device failed"];
    return errorFromFailure(code, message);
  }

  allocate(byteLength: number, where: string): NativeStorage {
    this.begin(where).number(byteLength);
    // Beyond, numbers mean nothing in native code: an element more would lie outside of what it gives.
    if (!Number.isSafeInteger(byteLength) || byteLength < 0) throw this.#outOfMemory(byteLength, where);
    translateErrors(this.native.allocate);
    const [address, block] = this.results;
    if (address === 0) throw this.#outOfMemory(byteLength, where);
    this.#account(byteLength);
    return new NativeStorage(this, { address: address!, byteLength }, () => this.#free(block!, byteLength));
  }

  #free(block: number, byteLength: number): void {
    if (this.#closed) return; // all memory went with the device
    this.begin("free").number(block).number(byteLength);
    this.native.free();
    this.#account(-byteLength);
  }

  #account(bytes: number): void {
    this.#unaccounted += bytes;
    if (Math.abs(this.#unaccounted) < accountBytes) return;
    this.#unaccounted = 0;
    this.native.account(this.#external);
  }

  /** Bytes: allocated, reserved, peak, limit, scratch. */
  memory(): readonly [number, number, number, number, number] {
    this.begin("memory");
    // An addon whose kernels hold nothing of their own leaves it.
    this.results[4] = 0;
    this.native.memory();
    const [allocated, reserved, peak, limit, scratch] = this.results;
    return [allocated!, reserved!, peak!, limit!, scratch!];
  }

  /** What was submitted still runs, then all memory goes. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.native.close(this.#external);
  }

  #outOfMemory(byteLength: number, where: string): OutOfMemoryError {
    const [allocated, reserved, , limit, scratch] = this.memory();
    const held = scratch > 0 ? `, ${mebibytes(scratch)} held by kernels` : "";
    const bound = limit > 0 ? `, the limit is ${mebibytes(limit)}` : "";
    return new OutOfMemoryError({
      where: `${this.name}: ${where}`,
      expected: `${mebibytes(byteLength)} of free memory`,
      received: `${mebibytes(allocated)} in use and ${mebibytes(reserved)} reserved${held}${bound}`,
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

function mebibytes(bytes: number): string {
  return `${(bytes / 2 ** 20).toFixed(bytes < 2 ** 20 ? 3 : 1)} MiB`;
}
