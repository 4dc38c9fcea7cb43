import { OptionError } from "@mosaic/core";
import { loadAddon, type Native } from "./addon.ts";
import { Letters } from "./letters.ts";
import { Scratch } from "./scratch.ts";

/** What all devices of this JavaScript environment share: the addon, its argument array, and its letters. */
export interface Runtime {
  readonly native: Native;
  /** What kernels run on, then all that this machine supports, slowest first. */
  readonly isas: readonly string[];
  readonly scratch: Scratch;
  readonly letters: Letters;
}

let loaded: Runtime | undefined;

/**
 * Loads the addon on first use.
 *
 * @throws AddonLoadError; OptionError if MOSAIC_ISA names an instruction set that this machine has not.
 */
export function runtime(): Runtime {
  if (loaded) return loaded;
  const native = loadAddon();
  const isas = isasOf(native);
  const letters = new Letters();
  const scratch = new Scratch(native);
  native.bind(scratch.values, letters.deliver);
  loaded = { native, isas, scratch, letters };
  return loaded;
}

function isasOf(native: Native): readonly string[] {
  try {
    return native.features().split(",");
  } catch (cause) {
    throw new OptionError((cause as Error).message, { cause });
  }
}
