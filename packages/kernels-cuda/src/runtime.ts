import { errorFromFailure } from "@mosaic/core";
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

/** Calls native code that says by a number in `code` what kind of error it throws. */
export function translated<T>(call: () => T): T {
  try {
    return call();
  } catch (error) {
    const { code, message } = error as Error & { readonly code?: string };
    if (code === undefined || !/^\d+$/.test(code)) throw error;
    throw errorFromFailure(Number(code), message);
  }
}
