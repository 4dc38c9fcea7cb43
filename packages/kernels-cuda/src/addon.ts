import { fileURLToPath } from "node:url";
import { type DeviceCalls, loadAddon, platform } from "@mosaic/runtime";

/** A mark in a stream. */
export type Event = { readonly __brand: "mosaic.cuda.event" };

/** The exports of native/binding. */
export interface Native extends DeviceCalls {
  record(): Event;
  wait(event: Event): void;
  /** Version and name of the driver, whether there are kernels, which cuBLASLt; then name, compute capability and bytes of each GPU. */
  probe(): readonly string[];
}

/** Where the addon of this platform lies. */
export const addonPath: string = fileURLToPath(
  new URL(`../prebuilds/${platform}/mosaic_kernels_cuda.node`, import.meta.url),
);

/** Loads the addon at `path`; every failure becomes an AddonLoadError that reports what to do. It needs no driver. */
export function loadCuda(path: string = addonPath): Native {
  return loadAddon<Native>({
    packageName: "@mosaic/kernels-cuda",
    what: "the native CUDA device",
    path,
    protocol: 2, // `kProtocol` in native/binding/addon.h
    needs: "g++ and CMake; nvcc for the kernels",
  });
}
