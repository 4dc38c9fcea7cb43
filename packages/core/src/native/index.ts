/**
 * What devices with native code share: arguments as numbers in one array, answers by letter, and everything that stands on
 * those. For authors of devices; the other half is in `include/mosaic`.
 *
 * @module
 */
export { type AddonFile, loadAddon, platform } from "./addon.ts";
export { NativeDevice } from "./device.ts";
export { type HandleOptions, NativeHandle } from "./handle.ts";
export { type KernelCall, type KernelCalls, type KernelHost, NativeKernels } from "./kernels.ts";
export { Letters } from "./letters.ts";
export { type DeviceCalls, type External, NativeRuntime, translated } from "./runtime.ts";
export { type Bound, Scratch } from "./scratch.ts";
export { NativeStorage } from "./storage.ts";
