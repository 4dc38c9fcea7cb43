export { cpu, type CpuFeatures, CpuDevice, type CpuOptions, features, fmaPeak, readBandwidth } from "./device.ts";
export type { Isa } from "./addon.ts";
