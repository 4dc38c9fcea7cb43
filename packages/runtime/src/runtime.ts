import { CollectiveMismatchError, errorFromFailure, type MosaicError } from "@mosaic/core";
import { addStacks, areStacksRecorded, captureCall, type RecordedCall } from "./call-stacks.ts";
import type { KernelCall, KernelCalls } from "./kernel-arguments.ts";
import { type NativeAddon, ArgumentBuffer } from "./argument-buffer.ts";

/** Mismatches that calls of this process have thrown or rejected with: the number of the last report, by message. */
const mismatchReports = new Map<string, number>();
let lastReportNumber = 0;

/** Returns the number of the last report of a mismatch. */
export function lastMismatchReport(): number {
  return lastReportNumber;
}

/**
 * Returns the error for a native failure, which the caller throws or rejects with. `waitingCall` is the call whose
 * promise rejects, if calls are recorded.
 */
export function reportFailure(code: number, message: string, waitingCall?: RecordedCall): MosaicError {
  const error = errorFromFailure(code, message);
  if (areStacksRecorded) addStacks(error, waitingCall);
  if (error instanceof CollectiveMismatchError) mismatchReports.set(message, ++lastReportNumber);
  return error;
}

/** Throws the error for a native failure that is a mismatch, unless a call has reported it after report `since`. */
export function throwUnreportedMismatch(code: number, message: string, since: number): void {
  for (const [text, number] of mismatchReports) if (number > since && text.includes(message)) return;
  const error = reportFailure(code, message);
  if (error instanceof CollectiveMismatchError) throw error;
}

interface PendingCompletion {
  readonly resolve: () => void;
  readonly reject: (error: Error) => void;
  /** Objects whose memory native code uses until the completion arrives. */
  readonly retainedObjects: unknown;
  /** The call that waits for the completion, if calls are recorded. */
  readonly waitingCall: RecordedCall | undefined;
}

/** Promises for work that native code completes later, by completion id. The JavaScript side of completion_queue.h. */
export class Completions {
  readonly #pending = new Map<number, PendingCompletion>();
  #lastId = 0;

  /**
   * Returns a promise that is settled by the completion whose number is passed to `submit`. `retainedObjects` stays
   * alive until then.
   */
  expect(retainedObjects: unknown, submit: (completion: number) => void): Promise<void> {
    const waitingCall = areStacksRecorded ? captureCall("the awaited operation", this.expect) : undefined;
    return new Promise((resolve, reject) => {
      const completion = ++this.#lastId;
      submit(completion);
      this.#pending.set(completion, { resolve, reject, retainedObjects, waitingCall });
    });
  }

  /** Called by the native completion queue. */
  readonly complete = (completion: number, code: number, message: string): void => {
    const pending = this.#pending.get(completion);
    this.#pending.delete(completion);
    if (code === 0) pending?.resolve();
    else pending?.reject(reportFailure(code, message, pending.waitingCall));
  };
}

/** Keeps a native device alive. */
export type External = { readonly __brand: "mosaic.device" };

/**
 * Exports of a device's addon. Arguments are passed in the argument buffer that `bind` has set, with the device's
 * address first, so most functions have no parameters.
 */
export interface DeviceCalls extends NativeAddon, KernelCalls {
  readonly protocol: number;
  /** Arguments: the options. Results: addresses of the device and of its stream, then values specific to the device. */
  open(): External;
  close(device: External): void;
  /** Reports the number of allocated bytes to V8. */
  account(device: External): void;
  write(values: Float32Array): void;
  read(values: Float32Array): void;
  failure(): readonly [code: number, message: string] | undefined;
  takeTrace(): readonly (string | number)[];
  /** Arguments: bytes. Results: the address, or 0 if memory is exhausted; the id to free the block with. */
  readonly allocate: KernelCall;
  /** Arguments: the id from `allocate`, bytes. */
  readonly free: KernelCall;
  readonly memory: KernelCall;
  readonly resetPeak: KernelCall;
  readonly trim: KernelCall;
  readonly synchronize: KernelCall;
  readonly startTrace: KernelCall;
  readonly stopTrace: KernelCall;
}

/** State that all devices of one addon share: its argument buffer and its completion queue. */
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

/** Calls native code. Converts errors with a MosaicFailureCode in `code` to the error class for that code. */
export function translateErrors<T>(call: () => T): T {
  try {
    return call();
  } catch (error) {
    const { code, message } = error as Error & { readonly code?: string };
    if (code === undefined || !/^\d+$/.test(code)) throw error;
    throw reportFailure(Number(code), message);
  }
}
