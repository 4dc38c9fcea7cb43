export { nccl } from "./nccl.ts";
export type { NcclOptions } from "./options.ts";
export { type NcclSystem, ncclSystem } from "./system.ts";
export { type NcclWorldOptions, world } from "./world.ts";
