import { fileURLToPath } from "node:url";
import { loadAddon, platform, translated } from "@mosaic/core/native";
import { candidates } from "./library.ts";

/** The exports of native/binding, which says what each does. Failures are errors whose `code` is a number. */
export interface Native {
  readonly protocol: number;
  load(candidates: readonly string[]): readonly [version: string, path: string];
}

/** Where the addon of this platform lies. */
export const addonPath: string = fileURLToPath(
  new URL(`../prebuilds/${platform}/mosaic_collectives_nccl.node`, import.meta.url),
);

let loaded: Native | undefined;

/** The addon, loaded when it is first needed; it needs neither CUDA nor NCCL. */
export function addon(): Native {
  loaded ??= loadAddon<Native>({
    packageName: "@mosaic/collectives-nccl",
    what: "the native half of the NCCL collectives",
    path: addonPath,
    protocol: 1, // `kProtocol` in native/binding/addon.h
    needs: "g++ and CMake",
  });
  return loaded;
}

/** Loads NCCL, once for the process: its version, and where it was found. */
export function loadNccl(): readonly [version: string, path: string] {
  return translated(() => addon().load(candidates()));
}
