export { type CudaOptions, CudaDevice, cuda } from "./device.ts";
export { type CudaGpu, type CudaSystem, cudaSystem } from "./system.ts";
