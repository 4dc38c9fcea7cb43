import { AddonLoadError, OptionError } from "@mosaic/core";
import { type DeviceCalls, findAddon, type KernelCall, loadAddon, NativeRuntime } from "@mosaic/runtime";

/** The exports of native/binding. */
export interface CpuAddon extends DeviceCalls {
  features(): string;
  /**
   * Whether the addon is built with AddressSanitizer. If so, a block must not be reused without a call, or its end is
   * unguarded.
   */
  readonly guardsBlockEnds: boolean;
  /** For tests: makes a stream fail through its handle. */
  injectFailure(stream: bigint, message: string): void;
  readonly record: KernelCall;
  readonly wait: KernelCall;
  readonly fmaPeak: KernelCall;
  readonly readBandwidth: KernelCall;
}

/** Path of the addon for this platform. */
export const addonPath: string = findAddon("mosaic_kernels_cpu", import.meta.url);

/** Loads the addon at `path`. Every failure is thrown as an AddonLoadError with a remedy. */
export function loadCpuAddon(path: string = addonPath): CpuAddon {
  return loadAddon<CpuAddon>({
    packageName: "@mosaic/kernels-cpu",
    description: "the native CPU device",
    path,
    protocol: 4, // `kBindingVersion` in native/binding/addon.h
    requirements: "g++ and CMake",
  });
}

let cachedAddon: NativeRuntime<CpuAddon> | undefined;

/** Returns the state shared by all CPU devices of this JavaScript environment. Loads the addon on first use. */
export function getAddon(): NativeRuntime<CpuAddon> {
  cachedAddon ??= new NativeRuntime(loadCpuAddon());
  return cachedAddon;
}

/** Instruction sets of the kernels. Within an architecture, each contains the one before. */
export type Isa = "scalar" | "avx2" | "avx512" | "avx512_bf16" | "amx" | "neon" | "neon_bf16";

/**
 * Returns the instruction set that a device opened now would use, followed by all that this machine supports, each
 * containing the one before.
 *
 * @throws OptionError if MOSAIC_ISA names an instruction set that this machine does not support.
 */
export function instructionSets(): readonly Isa[] {
  try {
    return getAddon().native.features().split(",") as Isa[];
  } catch (cause) {
    if (cause instanceof AddonLoadError) throw cause;
    throw new OptionError((cause as Error).message, { cause });
  }
}
