export { cpu, type CpuFeatures, CpuDevice, type CpuOptions, features, fmaPeak } from "./device.ts";
export type { Isa } from "./addon.ts";
