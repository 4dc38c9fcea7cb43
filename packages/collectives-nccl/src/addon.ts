import { fileURLToPath } from "node:url";
import { loadAddon, platform, translated } from "@mosaic/runtime";
import { candidates } from "./library.ts";

/** How a transport uses NCCL; 0 and "" leave it to NCCL. */
export interface TransportOptions {
  readonly minCtas: number;
  readonly maxCtas: number;
  readonly network: string;
  readonly warmUp: boolean;
}

/** The exports of native/addon.cc, which documents each. Failures are errors whose `code` is a number. */
interface Native {
  readonly protocol: number;
  load(candidates: readonly string[]): readonly [version: string, path: string];
  open(options: TransportOptions): number;
}

/** Where the addon of this platform lies. */
export const addonPath: string = fileURLToPath(
  new URL(`../prebuilds/${platform}/mosaic_collectives_nccl.node`, import.meta.url),
);

let loaded: Native | undefined;

/** The addon, loaded when it is first needed; it needs neither CUDA nor NCCL. */
function addon(): Native {
  loaded ??= loadAddon<Native>({
    packageName: "@mosaic/collectives-nccl",
    what: "the transport over NCCL",
    path: addonPath,
    protocol: 2, // `kProtocol` in native/addon.cc
    needs: "g++ and CMake",
  });
  return loaded;
}

/** Loads NCCL, once for the process: its version, and where it was found. */
export function loadNccl(): readonly [version: string, path: string] {
  return translated(() => addon().load(candidates()));
}

/** Makes the transport of one rank: the address of a `MosaicTransport`. NCCL must have been loaded. */
export function openTransport(options: TransportOptions): number {
  return translated(() => addon().open(options));
}
