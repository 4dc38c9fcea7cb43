import { errorFromFailure } from "@mosaic/core";
import type { KernelCall, KernelCalls } from "./kernel-arguments.ts";
import { type NativeAddon, ArgumentBuffer } from "./argument-buffer.ts";

interface PendingCompletion {
  readonly resolve: () => void;
  readonly reject: (error: Error) => void;
  /** What native code writes to until the completion arrives. */
  readonly retainedObjects: unknown;
}

/** Promises for work that native code completes later, by number: the JavaScript side of completion_queue.h. */
export class Completions {
  readonly #pending = new Map<number, PendingCompletion>();
  #lastId = 0;

  /** A promise, settled by the completion whose number `submit` is given; `held` stays alive until then. */
  expect(retainedObjects: unknown, submit: (completion: number) => void): Promise<void> {
    return new Promise((resolve, reject) => {
      const completion = ++this.#lastId;
      submit(completion);
      this.#pending.set(completion, { resolve, reject, retainedObjects });
    });
  }

  /** Called by the native completion queue. */
  readonly complete = (completion: number, code: number, message: string): void => {
    const pending = this.#pending.get(completion);
    this.#pending.delete(completion);
    if (code === 0) pending?.resolve();
    else pending?.reject(errorFromFailure(code, message));
  };
}

/** Keeps a native device alive. */
export type External = { readonly __brand: "mosaic.device" };

/**
 * What the addon of any device exports. Arguments travel through the argument buffer that `bind` was given, the device's
 * address first, so most calls take none.
 */
export interface DeviceCalls extends NativeAddon, KernelCalls {
  readonly protocol: number;
  /** Arguments: the options → address of the device, address of its stream, and what else the device reports. */
  open(): External;
  close(device: External): void;
  /** Reports to V8 how much is allocated. */
  account(device: External): void;
  write(values: Float32Array): void;
  read(values: Float32Array): void;
  failure(): readonly [code: number, message: string] | undefined;
  takeTrace(): readonly (string | number)[];
  /** Arguments: bytes → address, or 0; and what to free it by. */
  readonly allocate: KernelCall;
  /** Arguments: what `allocate` gave, bytes. */
  readonly free: KernelCall;
  readonly memory: KernelCall;
  readonly resetPeak: KernelCall;
  readonly trim: KernelCall;
  readonly synchronize: KernelCall;
  readonly startTrace: KernelCall;
  readonly stopTrace: KernelCall;
}

/** What all devices of one addon share: its argument array and its completion queue. */
export class NativeRuntime<Native extends DeviceCalls = DeviceCalls> {
  readonly native: Native;
  readonly argumentBuffer: ArgumentBuffer;
  readonly completions: Completions = new Completions();

  constructor(native: Native) {
    this.native = native;
    this.argumentBuffer = new ArgumentBuffer(native);
    native.bind(this.argumentBuffer.values, this.completions.complete);
  }
}

/** Calls native code whose errors have a MosaicFailureCode in `code`. */
export function translateErrors<T>(call: () => T): T {
  try {
    return call();
  } catch (error) {
    const { code, message } = error as Error & { readonly code?: string };
    if (code === undefined || !/^\d+$/.test(code)) throw error;
    throw errorFromFailure(Number(code), message);
  }
}
