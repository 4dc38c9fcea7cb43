import { AddonLoadError, OptionError } from "@mosaic/core";
import { type DeviceCalls, findAddon, type KernelCall, loadAddon, NativeRuntime } from "@mosaic/runtime";

/** The exports of native/binding. */
export interface CpuAddon extends DeviceCalls {
  features(): string;
  /** Built with AddressSanitizer: blocks of memory must not be reused without a call, or their ends would not be guarded. */
  readonly guardsBlockEnds: boolean;
  /** For tests: makes a stream fail through its handle. */
  injectFailure(stream: bigint, message: string): void;
  readonly record: KernelCall;
  readonly wait: KernelCall;
  readonly fmaPeak: KernelCall;
  readonly readBandwidth: KernelCall;
}

/** Where the addon of this platform lies. */
export const addonPath: string = findAddon("mosaic_kernels_cpu", import.meta.url);

/** Loads the addon at `path`; every failure becomes an AddonLoadError that reports what to do. */
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

/** What all CPU devices of this JavaScript environment share; loads the addon on first use. */
export function getAddon(): NativeRuntime<CpuAddon> {
  cachedAddon ??= new NativeRuntime(loadCpuAddon());
  return cachedAddon;
}

/** Instruction sets that kernels exist for; of one architecture, each contains the one before. */
export type Isa = "scalar" | "avx2" | "avx512" | "avx512_bf16" | "amx" | "neon" | "neon_bf16";

/**
 * What a device opened now would run on, then all that this machine supports, each containing the one before.
 *
 * @throws OptionError if MOSAIC_ISA names an instruction set that this machine has not.
 */
export function instructionSets(): readonly Isa[] {
  try {
    return getAddon().native.features().split(",") as Isa[];
  } catch (cause) {
    if (cause instanceof AddonLoadError) throw cause;
    throw new OptionError((cause as Error).message, { cause });
  }
}
