import { fileURLToPath } from "node:url";
import type { TraceEvent } from "@mosaic/core";
import { Completions, loadAddon, platform, type SplitResult, translated } from "@mosaic/runtime";
import { candidates } from "./library.ts";

/** One rank's engine, as native code holds it. */
export type Member = { readonly member: unique symbol };

/** Where the ranks of a world meet, and NCCL's id of it. */
export interface Meeting {
  readonly host: string;
  readonly port: number;
  readonly token: string;
  readonly id: Uint8Array;
}

/** What `connect` takes; addresses are numbers. */
export interface Joining extends Meeting {
  readonly rank: number;
  readonly size: number;
  readonly minCtas: number;
  readonly maxCtas: number;
  readonly network: string;
  readonly warmUp: boolean;
  readonly connectSeconds: number;
  readonly timeoutSeconds: number;
  readonly drainSeconds: number;
  readonly stream: number;
  readonly device: number;
}

/** The exports of native/binding, which says what each does. Failures are errors whose `code` is a number. */
export interface Native {
  readonly protocol: number;
  bind(complete: (completion: number, code: number, message: string) => void): void;
  load(candidates: readonly string[]): readonly [version: string, path: string];
  uniqueId(): Uint8Array;
  openHub(size: number, host: string, seconds: number): readonly [port: number, token: string];
  connect(joining: Joining, completion: number): Member;
  close(member: Member, completion: number): void;
  forget(member: Member): void;
  abortAll(): void;
  post(member: Member, group: number, words: Float64Array, label: string): number;
  wait(member: Member, operation: number): void;
  completed(member: Member): number;
  split(...splitting: [member: Member, group: number, color: number, name: string, completion: number]): number;
  part(member: Member, operation: number): SplitResult;
  traffic(member: Member, group: number): readonly [number, number, number];
  startTrace(member: Member): void;
  stopTrace(member: Member, completion: number): void;
  takeTrace(completion: number): readonly TraceEvent[];
}

/** Where the addon of this platform lies. */
export const addonPath: string = fileURLToPath(
  new URL(`../prebuilds/${platform}/mosaic_collectives_nccl.node`, import.meta.url),
);

/** What native code promised. */
export const completions: Completions = new Completions();
let loaded: Native | undefined;

/** The addon, loaded when it is first needed; it needs neither CUDA nor NCCL. */
export function addon(): Native {
  if (loaded) return loaded;
  loaded = loadAddon<Native>({
    packageName: "@mosaic/collectives-nccl",
    what: "the native half of the NCCL collectives",
    path: addonPath,
    protocol: 1, // `kProtocol` in native/binding/addon.h
    needs: "g++ and CMake",
  });
  loaded.bind(completions.complete);
  // Streams that wait for an operation would otherwise hold up the end of the process.
  process.once("exit", loaded.abortAll);
  return loaded;
}

/** Runs a native call; what it throws becomes the error class that its code stands for. */
export function native<T>(call: (addon: Native) => T): T {
  return translated(() => call(addon()));
}

/** Loads NCCL, once for the process: its version, and where it was found. */
export function loadNccl(): readonly [version: string, path: string] {
  return native((addon) => addon.load(candidates()));
}
