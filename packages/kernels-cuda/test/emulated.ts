import { fileURLToPath } from "node:url";

/** Whether the GPU of this machine is to be used, instead of an emulated one: MOSAIC_TEST_GPU=1. */
export const runsOnGpu: boolean = process.env.MOSAIC_TEST_GPU === "1";

const resolveBuilt = (name: string): string => fileURLToPath(new URL(`../build-emulated/${name}`, import.meta.url));

/** The stand-in for the driver, which runs the kernels that are shipped under emulation. */
export const emulatedDriver: string = resolveBuilt("libcuda_emulated.so");
/** The stand-in for cuBLASLt, which multiplies in the emulated driver's memory. */
export const emulatedBlas: string = resolveBuilt("libcublaslt_emulated.so");
/** A package whose addon carries no kernels, as one that was built without nvcc; its JavaScript has to be copied there. */
export const withoutKernels: string = resolveBuilt("without-kernels");

if (!runsOnGpu) process.env.MOSAIC_CUDA_LIBRARY ??= emulatedDriver;
