export { cpu, CpuDevice } from "./device.ts";
export { type CpuFeatures, features, fmaPeak } from "./features.ts";
export type { CpuOptions } from "./options.ts";
export type { Isa } from "./runtime.ts";
