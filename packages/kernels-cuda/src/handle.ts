import { ClosedError, errorFromFailure, OutOfMemoryError } from "@mosaic/core";
import { type KernelCall, NativeStorage, type Scratch } from "@mosaic/core/native";
import type { External, Native } from "./addon.ts";
import { type Runtime, runtime, translated } from "./runtime.ts";

export interface HandleOptions {
  /** Number of the GPU. */
  readonly index: number;
  /** Bytes; 0 for no limit. */
  readonly memoryLimit: number;
}

/** V8 hears of changes in device memory of this size, to know when collecting garbage is worth it. */
const accountBytes = 16 * 2 ** 20;

/** A native device, as the parts of CudaDevice use it. */
export class Handle {
  readonly name: string;
  readonly native: Native;
  readonly streamAddress: bigint;
  /** 80 for 8.0. */
  readonly capability: number;
  readonly #runtime: Runtime;
  readonly #external: External;
  readonly #address: number;
  #closed = false;
  #unaccounted = 0;

  constructor({ index, memoryLimit }: HandleOptions) {
    this.name = `cuda:${index}`;
    this.#runtime = runtime();
    this.native = this.#runtime.native;
    const { scratch } = this.#runtime;
    scratch.values[0] = index;
    scratch.values[1] = memoryLimit;
    this.#external = translated(() => this.native.open());
    this.#address = scratch.values[0];
    this.streamAddress = BigInt(scratch.values[1]);
    this.capability = scratch.values[2]!;
  }

  /** The scratch array, ready for the arguments of a call. */
  begin(where: string): Scratch {
    if (this.#closed) {
      throw new ClosedError({
        where,
        expected: "an open device",
        received: `${this.name} after dispose`,
        remedy: "dispose a device, or close its context, after its last use",
      });
    }
    return this.#runtime.scratch.begin(this, this.#address, where);
  }

  /** Results of the last native call. */
  get results(): Float64Array {
    return this.#runtime.scratch.values;
  }

  /** Makes a call that starts work; throws the device's failure if it has failed. */
  launch(call: KernelCall): void {
    translated(call);
    if (this.results[0] === 0) return;
    this.results[0] = this.#address;
    const [code, message] = this.native.failure() ?? [1, "the device failed"];
    throw errorFromFailure(code, message);
  }

  /** Makes a call that answers by letter. */
  expect(where: string, held: unknown, call: (letter: number, scratch: Scratch) => void): Promise<void> {
    return this.#runtime.letters.expect(held, (letter) => {
      const scratch = this.begin(where).number(letter);
      translated(() => call(letter, scratch));
    });
  }

  allocate(byteLength: number, where: string): NativeStorage {
    this.begin(where).number(byteLength);
    translated(this.native.allocate);
    const address = this.results[0]!;
    if (address === 0) throw this.#outOfMemory(byteLength, where);
    this.#account(byteLength);
    return new NativeStorage(this, { address, byteLength }, () => this.#free(address, byteLength));
  }

  #free(address: number, byteLength: number): void {
    if (this.#closed) return; // all memory went with the device
    this.begin("free").number(address).number(byteLength);
    this.native.free();
    this.#account(-byteLength);
  }

  #account(bytes: number): void {
    this.#unaccounted += bytes;
    if (Math.abs(this.#unaccounted) < accountBytes) return;
    this.#unaccounted = 0;
    this.begin("account");
    this.native.account(this.#external);
  }

  /** Bytes: allocated, reserved, peak, limit. */
  memory(): readonly [number, number, number, number] {
    this.begin("memory");
    this.native.memory();
    const [allocated, reserved, peak, limit] = this.results;
    return [allocated!, reserved!, peak!, limit!];
  }

  /** What was started still runs, then all memory goes. */
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
      remedy: "dispose tensors, or cut the sequence over more ranks",
    });
  }
}

function mebibytes(bytes: number): string {
  return `${(bytes / 2 ** 20).toFixed(bytes < 2 ** 20 ? 3 : 1)} MiB`;
}
