export { CpuDevice, cpu } from "./device.ts";
export { type CpuFeatures, features, fmaPeak, type Isa } from "./features.ts";
export type { CpuOptions } from "./options.ts";
