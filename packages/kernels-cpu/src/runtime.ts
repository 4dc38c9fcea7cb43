import { AddonLoadError, OptionError } from "@mosaic/core";
import { NativeRuntime } from "@mosaic/runtime";
import { loadCpu, type Native } from "./addon.ts";

let loaded: NativeRuntime<Native> | undefined;

/** What all CPU devices of this JavaScript environment share; loads the addon on first use. */
export function runtime(): NativeRuntime<Native> {
  loaded ??= new NativeRuntime(loadCpu());
  return loaded;
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
    return runtime().native.features().split(",") as Isa[];
  } catch (cause) {
    if (cause instanceof AddonLoadError) throw cause;
    throw new OptionError((cause as Error).message, { cause });
  }
}
