import { type DeviceCalls, findAddon, loadAddon, NativeRuntime, translateErrors } from "@mosaic/runtime";

let cachedAddon: NativeRuntime<CudaAddon> | undefined;

/** Returns the state shared by all CUDA devices of this JavaScript environment. Loads the addon on first use. */
export function getAddon(): NativeRuntime<CudaAddon> {
  cachedAddon ??= new NativeRuntime(loadCudaAddon());
  return cachedAddon;
}

/** An event in a stream. */
export type Event = { readonly __brand: "mosaic.cuda.event" };

/** The exports of native/binding. */
export interface CudaAddon extends DeviceCalls {
  record(): Event;
  wait(event: Event): void;
  /**
   * Returns driver version and library, whether there are kernels, cuBLASLt; then name, compute capability and bytes
   * per GPU.
   */
  probe(): readonly string[];
}

/** Path of the addon for this platform. */
const addonPath: string = findAddon("mosaic_kernels_cuda", import.meta.url);

/** Loads the addon at `path`. Every failure is thrown as an AddonLoadError with a remedy. Needs no driver. */
function loadCudaAddon(path: string = addonPath): CudaAddon {
  return loadAddon<CudaAddon>({
    packageName: "@mosaic/kernels-cuda",
    description: "the native CUDA device",
    path,
    protocol: 2, // `kBindingVersion` in native/binding/addon.h
    requirements: "g++ and CMake; nvcc for the kernels",
  });
}

/** A GPU that the driver reports. */
export interface CudaGpu {
  readonly name: string;
  /** "9.0" */
  readonly capability: string;
  readonly bytes: number;
  /** Reason for which `cuda()` would reject the GPU; undefined if it would not. */
  readonly problem?: string;
}

/** The driver and its GPUs. */
export interface CudaSystem {
  /** The CUDA version that the driver supports: "12.4". */
  readonly driver: string;
  /** Name of the driver library that was loaded. */
  readonly library: string;
  /** The cuBLASLt used for matrix products, and its version; undefined if a built-in kernel computes them. */
  readonly cublasLt?: string;
  readonly gpus: readonly CudaGpu[];
}

/**
 * Returns the driver and the GPUs that it finds on this machine.
 *
 * @throws DeviceError that reports what is missing, with a remedy.
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

/** Returns why native/device/device.cc would reject a GPU, as far as can be determined without opening it. */
function describeProblem(capability: string, hasKernels: boolean): string | undefined {
  if (Number(capability) < 8)
    return `compute capability ${capability} is not supported; 8.0 (Ampere) or newer is required`;
  return hasKernels ? undefined : "@mosaic/kernels-cuda was built without kernels because nvcc was not found";
}
