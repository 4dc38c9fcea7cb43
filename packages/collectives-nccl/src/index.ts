export { nccl, type NcclOptions, type NcclWorldOptions, world } from "./nccl.ts";
export { type NcclSystem, ncclSystem } from "./addon.ts";
