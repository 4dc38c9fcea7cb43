/**
 * What devices and collectives with native code share: arguments as numbers in one array, answers by letter, checks of
 * what is posted, and everything that stands on those. For their authors; the other half is in `include/mosaic`.
 *
 * @module
 */
export { type AddonFile, loadAddon, platform } from "./addon.ts";
export { type Caller, checkRank, checkReduceOp, checkSelfTransfers, sharesOf } from "./collectives/checks.ts";
export { type CollectivesEngine, type SplitResult } from "./collectives/engine.ts";
export { NativeGroup } from "./collectives/group.ts";
export { NativeRank } from "./collectives/rank.ts";
export { timeoutOf } from "./collectives/timeout.ts";
export { openWorld, type Together, type WorldOptions } from "./collectives/world.ts";
export { NativeDevice } from "./device.ts";
export { type HandleOptions, NativeHandle } from "./handle.ts";
export { type KernelCall, type KernelCalls, type KernelHost, NativeKernels } from "./kernels.ts";
export { Letters } from "./letters.ts";
export { type DeviceCalls, type External, NativeRuntime, translated } from "./runtime.ts";
export { type Bound, Scratch } from "./scratch.ts";
export { NativeStorage } from "./storage.ts";
