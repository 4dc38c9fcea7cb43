import { fileURLToPath } from "node:url";
import { AddonLoadError, OptionError } from "@mosaic/core";
import { type DeviceCalls, type KernelCall, loadAddon, NativeRuntime, platform } from "@mosaic/runtime";

/** The exports of native/binding. */
export interface CpuAddon extends DeviceCalls {
  features(): string;
  /** For tests: makes a stream fail through its handle. */
  injectFailure(stream: bigint, message: string): void;
  readonly record: KernelCall;
  readonly wait: KernelCall;
  readonly fmaPeak: KernelCall;
}

/** Where the addon of this platform lies. */
export const addonPath: string = fileURLToPath(
  new URL(`../prebuilds/${platform}/mosaic_kernels_cpu.node`, import.meta.url),
);

/** Loads the addon at `path`; every failure becomes an AddonLoadError that reports what to do. */
export function loadCpu(path: string = addonPath): CpuAddon {
  return loadAddon<CpuAddon>({
    packageName: "@mosaic/kernels-cpu",
    what: "the native CPU device",
    path,
    protocol: 2, // `kProtocol` in native/binding/addon.h
    needs: "g++ and CMake",
  });
}

let cachedAddon: NativeRuntime<CpuAddon> | undefined;

/** What all CPU devices of this JavaScript environment share; loads the addon on first use. */
export function getAddon(): NativeRuntime<CpuAddon> {
  cachedAddon ??= new NativeRuntime(loadCpu());
  return cachedAddon;
}

/** Instruction sets that kernels exist for, slowest first. */
export type Isa = "scalar" | "avx2" | "avx512";

/**
 * What a device opened now would run on, then all that this machine supports, slowest first.
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
