import { threadCount } from "./options.ts";
import { instructionSets, type Isa, runtime } from "./runtime.ts";

export interface CpuFeatures {
  /** What kernels run on: the fastest supported, or what MOSAIC_ISA names. */
  readonly isa: Isa;
  /** What this machine can run, slowest first. */
  readonly supported: readonly Isa[];
  /** Threads that a device gets by default. */
  readonly threads: number;
}

/**
 * What the native CPU device found on this machine.
 *
 * @throws OptionError if MOSAIC_ISA names an instruction set that this machine has not.
 */
export function features(): CpuFeatures {
  const [isa, ...supported] = instructionSets();
  return { isa: isa!, supported, threads: threadCount(undefined) };
}

/**
 * Billions of float32 operations per second that fused multiply-adds on registers reach on `threads` threads: the roof
 * that kernels are measured against. Blocks the host for some tens of milliseconds; meant for benchmarks.
 */
export function fmaPeak(threads: number = threadCount(undefined)): number {
  const { native, scratch } = runtime();
  scratch.values[0] = threadCount(threads);
  native.fmaPeak();
  return scratch.values[0];
}
