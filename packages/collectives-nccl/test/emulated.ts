import { fileURLToPath } from "node:url";

/** Whether the real libraries are to be used, with all ranks on one GPU. */
export const onGpu: boolean = process.env.MOSAIC_TEST_GPU === "1";

const emulated = (path: string): string => fileURLToPath(new URL(path, import.meta.url));
/** The stand-ins for the driver, which runs the kernels that are shipped under emulation, and for NCCL. */
export const standIns: Readonly<Record<string, string>> = {
  MOSAIC_CUDA_LIBRARY: emulated("../../kernels-cuda/build-emulated/libcuda_emulated.so"),
  MOSAIC_NCCL_LIBRARY: emulated("../build-emulated/libnccl_standin.so"),
};

if (!onGpu) for (const [name, path] of Object.entries(standIns)) process.env[name] ??= path;
