import { fileURLToPath } from "node:url";

/** Whether tests use this machine's GPU instead of the emulated one: MOSAIC_TEST_GPU=1. */
export const runsOnGpu: boolean = process.env.MOSAIC_TEST_GPU === "1";

const resolveBuilt = (name: string): string => fileURLToPath(new URL(`../build-emulated/${name}`, import.meta.url));

/** The emulated driver, which runs the shipped kernels under emulation. */
export const emulatedDriver: string = resolveBuilt("libcuda_emulated.so");
/** The emulated cuBLASLt, which multiplies in the emulated driver's memory. */
export const emulatedBlas: string = resolveBuilt("libcublaslt_emulated.so");
/** A package whose addon has no kernels, as if built without nvcc. Its JavaScript must be copied there. */
export const withoutKernels: string = resolveBuilt("without-kernels");

if (!runsOnGpu) process.env.MOSAIC_CUDA_LIBRARY ??= emulatedDriver;
