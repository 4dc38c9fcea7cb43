import { fileURLToPath } from "node:url";

/** The stand-in for the driver, which runs the kernels that are shipped under emulation. */
export const emulatedDriver: string = fileURLToPath(new URL("../build-emulated/libcuda_emulated.so", import.meta.url));

process.env.MOSAIC_CUDA_LIBRARY ??= emulatedDriver;
