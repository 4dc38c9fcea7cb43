import type { TraceEvent } from "@mosaic/core";
import { findAddon, loadAddon } from "../addon.ts";
import { Completions, translateErrors } from "../runtime.ts";

/** One rank's engine, as native code holds it. */
export type EngineHandle = { readonly engine: unique symbol };
/** What ranks of this process share beside a transport. */
export type InProcessWorld = { readonly world: unique symbol };

/** A group that came of a split: its number among the rank's groups, the place in it, the world ranks of its members. */
export interface SplitResult {
  readonly index: number;
  readonly rank: number;
  readonly ranks: readonly number[];
}

/** What `open` takes; addresses are numbers. */
export interface OpenOptions {
  readonly transport: number;
  readonly rank: number;
  readonly size: number;
  /** `Stream.handle`, and `Stream.port` or 0. */
  readonly stream: number;
  readonly port: number;
  readonly timeoutSeconds: number;
  /** When closing: seconds to wait for ranks that do not move; negative: as long as the timeout allows. */
  readonly drainSeconds: number;
  /** Seconds to wait for the other ranks, and then for the transport to connect them. */
  readonly connectSeconds: number;
  /** `Device.instructionSet`, or empty. */
  readonly instructionSet: string;
  /** The control plane: of ranks of this process, or the agent of this host and the world that the ranks join there. */
  readonly world?: InProcessWorld;
  readonly agent?: {
    readonly path: string;
    readonly secret: string;
    readonly world: string;
    readonly attempt: number;
  };
}

/** The exports of native/binding, which documents each. Failures are errors whose `code` is a number. */
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

/** What native code will complete. */
export const completions: Completions = new Completions();
let cachedAddon: CollectivesAddon | undefined;

/** The addon, loaded when it is first needed. Throws an AddonLoadError that lists likely causes. */
export function addon(): CollectivesAddon {
  if (cachedAddon) return cachedAddon;
  cachedAddon = loadAddon<CollectivesAddon>({
    packageName: "@mosaic/runtime",
    description: "the collectives engine",
    path: addonPath,
    protocol: 4, // `kBindingVersion` in native/binding/addon.h
    requirements: "g++ and CMake",
  });
  cachedAddon.bind(completions.complete);
  // Streams that wait for an operation would otherwise hold up the end of the process, and threads use libraries during it.
  process.once("exit", cachedAddon.abortAll);
  return cachedAddon;
}

/** Runs a native call; what it throws becomes the error class that its code stands for. */
export function callNative<T>(call: (addon: CollectivesAddon) => T): T {
  return translateErrors(() => call(addon()));
}
