import { fileURLToPath } from "node:url";

const resolvePath = (path: string): string => fileURLToPath(new URL(path, import.meta.url));

/** The emulated NCCL, and the emulated driver, which executes the shipped kernels. */
export const emulatedLibraries: Readonly<Record<string, string>> = {
  MOSAIC_CUDA_LIBRARY: resolvePath("../../kernels-cuda/build-emulated/libcuda_emulated.so"),
  MOSAIC_NCCL_LIBRARY: resolvePath("../build-emulated/libnccl_emulated.so"),
};

/** Whether processes use the real libraries, all on the first GPU. */
export const runsOnGpu: boolean = process.env.MOSAIC_TEST_GPU === "1";

/** Makes this process and its child processes use the emulated libraries. */
export function emulate(): void {
  Object.assign(process.env, emulatedLibraries);
}

if (!runsOnGpu) emulate();
