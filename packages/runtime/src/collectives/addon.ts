import type { TraceEvent } from "@mosaic/core";
import { findAddon, loadAddon } from "../addon.ts";
import { Completions, translateErrors } from "../runtime.ts";

/** Handle of one rank's native engine. */
export type EngineHandle = { readonly engine: unique symbol };
/** Handle of the native control plane that the ranks of this process share. */
export type InProcessWorld = { readonly world: unique symbol };

/** Group created by a split: its index among the rank's groups, this rank in it, and the world ranks of its members. */
export interface SplitResult {
  readonly index: number;
  readonly rank: number;
  readonly ranks: readonly number[];
}

/** Options of `open`. Addresses are numbers. */
export interface OpenOptions {
  readonly transport: number;
  readonly rank: number;
  readonly size: number;
  /** `Stream.handle`; `port` is `Stream.port`, or 0. */
  readonly stream: number;
  readonly port: number;
  readonly timeoutSeconds: number;
  /** When closing: seconds to wait for ranks that make no progress. Negative: until the timeout. */
  readonly drainSeconds: number;
  /** Seconds to wait for the other ranks, and again for the transport to connect them. */
  readonly connectSeconds: number;
  /** `Device.instructionSet`, or empty. */
  readonly instructionSet: string;
  /** The control plane: either that of the ranks of this process, or this host's agent and the world to join there. */
  readonly world?: InProcessWorld;
  readonly agent?: {
    readonly path: string;
    readonly secret: string;
    readonly world: string;
    readonly attempt: number;
  };
}

/** The exports of native/binding, which documents each of them. Failures are thrown as errors with a numeric `code`. */
export interface CollectivesAddon {
  readonly protocol: number;
  bind(complete: (completion: number, code: number, message: string) => void): void;
  openWorld(size: number, seconds: number, hosts: Uint32Array): InProcessWorld;
  open(options: OpenOptions, completion: number): EngineHandle;
  hosts(engine: EngineHandle): readonly number[];
  close(engine: EngineHandle, completion: number): void;
  release(engine: EngineHandle): void;
  abortAll(): void;
  post(engine: EngineHandle, group: number, words: Float64Array, label: string): number;
  record(engine: EngineHandle, group: number, description: string): void;
  wait(engine: EngineHandle, operation: number): void;
  completed(engine: EngineHandle): number;
  failure(engine: EngineHandle): readonly [code: number, message: string] | undefined;
  split(
    ...splitArguments: [engine: EngineHandle, group: number, color: number, name: string, completion: number]
  ): number;
  splitResult(engine: EngineHandle, operation: number): SplitResult;
  traffic(engine: EngineHandle, group: number): readonly [number, number, number];
  markStep(engine: EngineHandle, reserved: number, peak: number): void;
  startTrace(engine: EngineHandle): void;
  stopTrace(engine: EngineHandle, completion: number): void;
  takeTrace(completion: number): readonly TraceEvent[];
}

const addonPath = findAddon("mosaic_runtime", import.meta.url);

/** Promises that the native code of collectives settles. */
export const completions: Completions = new Completions();
let cachedAddon: CollectivesAddon | undefined;

/** Returns the addon, which is loaded at the first call. Throws an AddonLoadError that lists likely causes. */
function addon(): CollectivesAddon {
  if (cachedAddon) return cachedAddon;
  cachedAddon = loadAddon<CollectivesAddon>({
    packageName: "@mosaic/runtime",
    description: "the collectives engine",
    path: addonPath,
    protocol: 5, // `kBindingVersion` in native/binding/addon.h
    requirements: "g++ and CMake",
  });
  cachedAddon.bind(completions.complete);
  // Otherwise streams that wait for an operation would delay process exit, and threads would use libraries during exit.
  process.once("exit", cachedAddon.abortAll);
  return cachedAddon;
}

/** Runs a native call. Converts an error that it throws to the error class for its code. */
export function callNative<T>(call: (addon: CollectivesAddon) => T): T {
  return translateErrors(() => call(addon()));
}
