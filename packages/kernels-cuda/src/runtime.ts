import { NativeRuntime } from "@mosaic/runtime";
import { loadCuda, type Native } from "./addon.ts";

let loaded: NativeRuntime<Native> | undefined;

/** What all CUDA devices of this JavaScript environment share; loads the addon on first use. */
export function runtime(): NativeRuntime<Native> {
  loaded ??= new NativeRuntime(loadCuda());
  return loaded;
}
