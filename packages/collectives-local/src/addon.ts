import { fileURLToPath } from "node:url";
import { loadAddon, platform } from "@mosaic/runtime";

interface Native {
  readonly protocol: number;
  /** A transport over shared memory for one rank: the address of a `MosaicTransport`. */
  open(): number;
}

const path = fileURLToPath(new URL(`../prebuilds/${platform}/mosaic_collectives_local.node`, import.meta.url));
let loaded: Native | undefined;

/** The addon, loaded when it is first needed. Throws an AddonLoadError that lists likely causes. */
export function addon(): Native {
  loaded ??= loadAddon<Native>({
    packageName: "@mosaic/collectives-local",
    what: "the transport over shared memory",
    path,
    protocol: 2, // `kProtocol` in native/addon.cc
    needs: "g++ and CMake",
  });
  return loaded;
}

/** Makes a transport over shared memory: the address of a `MosaicTransport`. */
export function openTransport(): number {
  return addon().open();
}
