export { cuda, CudaDevice, type CudaOptions } from "./device.ts";
export { type CudaGpu, type CudaSystem, cudaSystem } from "./addon.ts";
