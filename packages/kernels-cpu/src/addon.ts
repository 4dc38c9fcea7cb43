import { fileURLToPath } from "node:url";
import { type DeviceCalls, type KernelCall, loadAddon, platform } from "@mosaic/runtime";

/** The exports of native/binding. */
export interface Native extends DeviceCalls {
  features(): string;
  /** For tests: makes a stream fail through its handle. */
  fail(stream: bigint, message: string): void;
  readonly record: KernelCall;
  readonly wait: KernelCall;
  readonly fmaPeak: KernelCall;
}

/** Where the addon of this platform lies. */
export const addonPath: string = fileURLToPath(
  new URL(`../prebuilds/${platform}/mosaic_kernels_cpu.node`, import.meta.url),
);

/** Loads the addon at `path`; every failure becomes an AddonLoadError that reports what to do. */
export function loadCpu(path: string = addonPath): Native {
  return loadAddon<Native>({
    packageName: "@mosaic/kernels-cpu",
    what: "the native CPU device",
    path,
    protocol: 2, // `kProtocol` in native/binding/addon.h
    needs: "g++ and CMake",
  });
}
