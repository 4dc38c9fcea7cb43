import { type DeviceCalls, findAddon, loadAddon, NativeRuntime, translateErrors } from "@mosaic/runtime";

let cachedAddon: NativeRuntime<CudaAddon> | undefined;

/** What all CUDA devices of this JavaScript environment share; loads the addon on first use. */
export function getAddon(): NativeRuntime<CudaAddon> {
  cachedAddon ??= new NativeRuntime(loadCudaAddon());
  return cachedAddon;
}

/** A mark in a stream. */
export type Event = { readonly __brand: "mosaic.cuda.event" };

/** The exports of native/binding. */
export interface CudaAddon extends DeviceCalls {
  record(): Event;
  wait(event: Event): void;
  /** Version and name of the driver, whether there are kernels, which cuBLASLt; then name, compute capability and bytes of each GPU. */
  probe(): readonly string[];
}

/** Where the addon of this platform lies. */
const addonPath: string = findAddon("mosaic_kernels_cuda", import.meta.url);

/** Loads the addon at `path`; every failure becomes an AddonLoadError that reports what to do. It needs no driver. */
function loadCudaAddon(path: string = addonPath): CudaAddon {
  return loadAddon<CudaAddon>({
    packageName: "@mosaic/kernels-cuda",
    description: "the native CUDA device",
    path,
    protocol: 2, // `kBindingVersion` in native/binding/addon.h
    requirements: "g++ and CMake; nvcc for the kernels",
  });
}

/** One GPU that the driver shows. */
export interface CudaGpu {
  readonly name: string;
  /** "9.0" */
  readonly capability: string;
  readonly bytes: number;
  /** Why `cuda()` would reject it; undefined if it would not. */
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
  const [driver, library, kernels, cublasLt, ...gpuFields] = translateErrors(() => getAddon().native.probe());
  const gpus = Array.from({ length: gpuFields.length / 3 }, (_, i) => {
    const [name, capability, bytes] = gpuFields.slice(3 * i) as [string, string, string];
    const problem = describeProblem(capability, kernels !== "");
    return { name, capability, bytes: Number(bytes), ...(problem && { problem }) };
  });
  return { driver: driver!, library: library!, ...(cublasLt && { cublasLt }), gpus };
}

/** What native/device/device.cc rejects, as far as can be found without opening the GPU. */
function describeProblem(capability: string, hasKernels: boolean): string | undefined {
  if (Number(capability) < 8)
    return `compute capability ${capability} is not supported; 8.0 (Ampere) or newer is required`;
  return hasKernels ? undefined : "@mosaic/kernels-cuda was built without kernels because nvcc was not found";
}
