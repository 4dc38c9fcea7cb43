import { AddonLoadError, OptionError } from "@mosaic/core";
import { Letters, Scratch } from "@mosaic/core/native";
import { loadAddon, type Native } from "./addon.ts";

/** What all devices of this JavaScript environment share: the addon, its argument array, and its letters. */
export interface Runtime {
  readonly native: Native;
  readonly scratch: Scratch;
  readonly letters: Letters;
}

let loaded: Runtime | undefined;

/** Loads the addon on first use; throws an AddonLoadError if it cannot. */
export function runtime(): Runtime {
  if (loaded) return loaded;
  const native = loadAddon();
  const letters = new Letters();
  const scratch = new Scratch(native);
  native.bind(scratch.values, letters.deliver);
  loaded = { native, scratch, letters };
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
