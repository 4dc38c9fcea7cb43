import { fileURLToPath } from "node:url";

const resolvePath = (path: string): string => fileURLToPath(new URL(path, import.meta.url));

/** The stand-ins for the driver, which runs the kernels that are shipped under emulation, and for NCCL. */
export const emulatedLibraries: Readonly<Record<string, string>> = {
  MOSAIC_CUDA_LIBRARY: resolvePath("../../kernels-cuda/build-emulated/libcuda_emulated.so"),
  MOSAIC_NCCL_LIBRARY: resolvePath("../build-emulated/libnccl_emulated.so"),
};

/** Whether processes shall use the real libraries, all on the first GPU. */
export const runsOnGpu: boolean = process.env.MOSAIC_TEST_GPU === "1";

/** Lets this process, and those that it starts, use the stand-ins. */
export function emulate(): void {
  Object.assign(process.env, emulatedLibraries);
}

if (!runsOnGpu) emulate();
