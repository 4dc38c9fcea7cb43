import { translated } from "@mosaic/runtime";
import { runtime } from "./runtime.ts";

/** One GPU that the driver shows. */
export interface CudaGpu {
  readonly name: string;
  /** "9.0" */
  readonly capability: string;
  readonly bytes: number;
  /** Why `cuda()` would refuse it; undefined if it would not. */
  readonly problem?: string;
}

/** The driver and its GPUs. */
export interface CudaSystem {
  /** The CUDA version that the driver is for: "12.4". */
  readonly driver: string;
  /** The library that was loaded. */
  readonly library: string;
  /** The cuBLASLt that multiplies matrices, and its version; undefined if a kernel of ours does. */
  readonly cublasLt?: string;
  readonly gpus: readonly CudaGpu[];
}

/**
 * What the driver finds on this machine.
 *
 * @throws DeviceError that reports what is missing, and what to do about it.
 */
export function cudaSystem(): CudaSystem {
  const [driver, library, kernels, cublasLt, ...rest] = translated(() => runtime().native.probe());
  const gpus = Array.from({ length: rest.length / 3 }, (_, i) => {
    const [name, capability, bytes] = rest.slice(3 * i) as [string, string, string];
    const problem = problemWith(capability, kernels !== "");
    return { name, capability, bytes: Number(bytes), ...(problem && { problem }) };
  });
  return { driver: driver!, library: library!, ...(cublasLt && { cublasLt }), gpus };
}

/** What native/device/device.cc refuses, as far as can be found without opening the GPU. */
function problemWith(capability: string, kernels: boolean): string | undefined {
  if (Number(capability) < 8) return `it has compute capability ${capability}, needed is 8.0 (Ampere) or newer`;
  return kernels ? undefined : "@mosaic/kernels-cuda was built without kernels, for nvcc was not found";
}
