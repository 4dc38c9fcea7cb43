import { ClosedError, errorFromFailure, OutOfMemoryError } from "@mosaic/core";
import { NativeStorage, type Scratch } from "@mosaic/core/native";
import type { External, Native } from "./addon.ts";
import { type Isa, instructionSets, type Runtime, runtime } from "./runtime.ts";

export interface HandleOptions {
  readonly name: string;
  readonly threads: number;
  /** Bytes; 0 for no limit. */
  readonly memoryLimit: number;
}

/** V8 hears of changes in native memory of this size, to know when collecting garbage is worth it. */
const accountBytes = 4 * 2 ** 20;

/** A native device, as the parts of CpuDevice use it. */
export class Handle {
  readonly name: string;
  readonly native: Native;
  readonly streamAddress: bigint;
  readonly isa: Isa;
  readonly #runtime: Runtime;
  readonly #external: External;
  readonly #address: number;
  #closed = false;
  #unaccounted = 0;

  constructor(options: HandleOptions) {
    this.name = options.name;
    this.#runtime = runtime();
    this.native = this.#runtime.native;
    this.isa = instructionSets()[0]!;
    const { scratch } = this.#runtime;
    scratch.values[0] = options.threads;
    scratch.values[1] = options.memoryLimit;
    this.#external = this.native.open();
    this.#address = scratch.values[0];
    this.streamAddress = BigInt(scratch.values[1]);
  }

  get isClosed(): boolean {
    return this.#closed;
  }

  /** Results of the last native call. */
  get results(): Float64Array {
    return this.#runtime.scratch.values;
  }

  /** The scratch array, ready for the arguments of a call. */
  begin(where: string): Scratch {
    if (this.#closed) this.#rejectClosed(where);
    return this.#runtime.scratch.begin(this, this.#address, where);
  }

  /** Makes a call that submits work; throws the stream's failure if it has failed. */
  launch(call: () => void): void {
    call();
    if (this.results[0] !== 0) throw this.failure();
  }

  /** Makes a call that answers by letter. */
  expect(where: string, held: unknown, call: (letter: number, scratch: Scratch) => void): Promise<void> {
    return this.#runtime.letters.expect(held, (letter) => call(letter, this.begin(where).number(letter)));
  }

  failure(): Error {
    this.results[0] = this.#address;
    const [code, message] = this.native.failure() ?? [1, "the stream failed"];
    return errorFromFailure(code, message);
  }

  /** The address of a device whose stream is waited for. */
  get address(): number {
    return this.#address;
  }

  allocate(byteLength: number, where: string): NativeStorage {
    this.begin(where).number(byteLength);
    this.native.allocate();
    const [address, block] = this.results;
    if (address === 0) throw this.#outOfMemory(byteLength, where);
    this.#account(byteLength);
    return new NativeStorage(this, { address: address!, byteLength }, () => this.#free(block!, byteLength));
  }

  #free(block: number, byteLength: number): void {
    if (this.#closed) return; // all memory went with the device
    this.begin("free").number(block);
    this.native.free();
    this.#account(-byteLength);
  }

  #account(bytes: number): void {
    this.#unaccounted += bytes;
    if (Math.abs(this.#unaccounted) < accountBytes) return;
    this.#unaccounted = 0;
    this.native.account(this.#external);
  }

  /** Bytes: allocated, reserved, peak, limit. */
  memory(): readonly [number, number, number, number] {
    this.begin("memory");
    this.native.memory();
    const [allocated, reserved, peak, limit] = this.results;
    return [allocated!, reserved!, peak!, limit!];
  }

  /** What was submitted still runs, then the stream's thread ends and all memory goes. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.native.close(this.#external);
  }

  #outOfMemory(byteLength: number, where: string): OutOfMemoryError {
    const [allocated, reserved, , limit] = this.memory();
    const bound = limit > 0 ? `, the limit is ${mebibytes(limit)}` : "";
    return new OutOfMemoryError({
      where: `${this.name}: ${where}`,
      expected: `room for ${mebibytes(byteLength)}`,
      received: `${mebibytes(allocated)} in use and ${mebibytes(reserved)} reserved${bound}`,
      remedy: "dispose tensors, cut the sequence over more ranks, or raise MOSAIC_MEMORY_LIMIT",
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
