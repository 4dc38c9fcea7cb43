import { createRequire } from "node:module";
import { AddonLoadError, errorFromFailure, type TraceEvent } from "@mosaic/core";
import type { SplitResult } from "@mosaic/runtime";

/** One rank's engine, as native code holds it. */
export type Member = { readonly member: unique symbol };
/** Memory shared by ranks of this process. */
export type Segment = { readonly segment: unique symbol };

/** The addon's exports; native/binding says what each does. Failures are errors with a `failure` code. */
interface Addon {
  openSegment(size: number): Segment;
  joinSegment(segment: Segment, rank: number, stream: number, timeout: number): Member;
  connect(
    ...meeting: [name: string, rank: number, size: number, patience: number, timeout: number, stream: number]
  ): Promise<Member>;
  close(member: Member): Promise<void>;
  abortAll(): void;
  post(member: Member, group: number, words: Float64Array, label: string): number;
  wait(member: Member, operation: number): void;
  completed(member: Member): number;
  split(member: Member, group: number, color: number, name: string): Promise<SplitResult>;
  traffic(member: Member, group: number): Float64Array;
  startTrace(member: Member): void;
  stopTrace(member: Member): TraceEvent[];
}

let loaded: Addon | undefined;

/** The addon, loaded when it is first needed. Throws an AddonLoadError that says what may be wrong. */
export function addon(): Addon {
  if (loaded) return loaded;
  const file = `../prebuilds/${process.platform}-${process.arch}/mosaic_collectives_local.node`;
  try {
    loaded = createRequire(import.meta.url)(file) as Addon;
  } catch (cause) {
    throw loadError(cause);
  }
  // Streams that wait for an operation would otherwise hold up the end of the process.
  process.once("exit", loaded.abortAll);
  return loaded;
}

function loadError(cause: unknown): AddonLoadError {
  return new AddonLoadError(
    `@mosaic/collectives-local: cannot load its native addon for ${process.platform}-${process.arch}: ${(cause as Error).message}
Possible causes and what to do:
  - it was not built: in a clone, run \`npm run build\`, which needs a C++20 compiler and CMake
  - this platform is not served: Linux on x64 or arm64 is
  - the package was installed for another platform: remove node_modules and install again`,
    { cause },
  );
}

/** Runs a native call; what it throws becomes the error class that its failure code stands for. */
export function native<T>(call: (addon: Addon) => T): T {
  try {
    return call(addon());
  } catch (error) {
    throw translate(error);
  }
}

/** The same for a call that returns a promise. */
export async function nativeLater<T>(call: (addon: Addon) => Promise<T>): Promise<T> {
  try {
    return await call(addon());
  } catch (error) {
    throw translate(error);
  }
}

function translate(error: unknown): unknown {
  if (!(error instanceof Error) || !("failure" in error)) return error;
  return errorFromFailure(error.failure as number, error.message);
}
