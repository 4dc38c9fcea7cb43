/**
 * What devices with native code share: arguments as numbers in one array, answers by letter. For authors of devices; the
 * other half is in `include/mosaic`.
 *
 * @module
 */
export { type KernelCall, type KernelCalls, type KernelHost, NativeKernels } from "./kernels.ts";
export { Letters } from "./letters.ts";
export { type Bound, Scratch } from "./scratch.ts";
export { NativeStorage } from "./storage.ts";
