/**
 * The runtime that devices and collectives with native code share: the Node-API host (arguments as numbers in one
 * array, completions, addon loading), the stream ABI and the collectives engine. It is for authors of devices and
 * transports. The C headers are in `include/mosaic`.
 *
 * @module
 */
export { type AddonFile, findAddon, loadAddon } from "./addon.ts";
export {
  checkDeviceType,
  connectProcess,
  type ConnectProcessOptions,
  connectRank,
  type ConnectRankOptions,
  type ControlPlane,
  createInProcessControl,
  resolveTimeout,
} from "./collectives/connect.ts";
export { NativeGroup } from "./collectives/group.ts";
export { NativeRank } from "./collectives/rank.ts";
export {
  createInProcessCollectives,
  type InProcessOptions,
  openWorld,
  type InProcessCollectives,
  type WorldOptions,
} from "./collectives/world.ts";
export { NativeDevice } from "./device.ts";
export { type HandleOptions, NativeHandle } from "./handle.ts";
export { type KernelCall, type KernelCalls, type KernelHost, nativeKernels } from "./kernel-arguments.ts";
export { findInterfaces } from "./network.ts";
export { Completions, type DeviceCalls, type External, NativeRuntime, translateErrors } from "./runtime.ts";
export { type NativeAddon, ArgumentBuffer } from "./argument-buffer.ts";
export { type Environment, sitePackages } from "./site-packages.ts";
export { type BlockOwner, type MemoryBlock, NativeStorage } from "./storage.ts";
