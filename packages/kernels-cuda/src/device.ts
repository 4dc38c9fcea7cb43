import { checkArgument, defineOptions, option, type OptionsOf } from "@mosaic/core";
import { NativeDevice, NativeHandle } from "@mosaic/runtime";
import type { Native } from "./addon.ts";
import { runtime } from "./runtime.ts";
import { CudaStream } from "./stream.ts";

export const cudaOptions = defineOptions("cuda", {
  /** Which GPU, as the driver numbers those that are visible. Default: LOCAL_RANK, else 0. */
  index: option.integer({ min: 0, optional: true }),
  /** Bytes that tensors may take, and what kernels hold to work in. Default: what the GPU has. */
  memoryLimit: option.integer({ min: 0, optional: true }),
  /** Whether products of float32 matrices may round their factors to TF32: 10 bits of mantissa, and faster. Default false. */
  tf32: option.boolean({ default: false }),
});
/** What `cuda` takes. */
export type CudaOptions = OptionsOf<typeof cudaOptions>;

/** A GPU as a device: what is enqueued runs in order on one stream; the host only enqueues. */
export class CudaDevice extends NativeDevice<Native> {
  readonly type = "cuda";
  readonly stream: CudaStream;
  /** Compute capability: 80 for 8.0. */
  readonly capability: number;

  constructor(options?: CudaOptions) {
    const { index: given, memoryLimit = 0, tf32 } = cudaOptions.parse(options);
    const index = given ?? Number(process.env.LOCAL_RANK ?? 0);
    checkArgument("cuda: LOCAL_RANK", index, cudaOptions.fields.index);
    const handle = new NativeHandle(runtime(), {
      name: `cuda:${index}`,
      options: [index, memoryLimit, Number(tf32)],
      remedy: "dispose tensors, or cut the sequence over more ranks",
    });
    super(index, handle);
    this.capability = handle.deviceInfo[0]!;
    this.stream = new CudaStream(handle);
  }
}

/**
 * A CUDA device. The package installs and loads without a GPU; this is where one is needed.
 *
 * @throws AddonLoadError if the addon is missing; DeviceError, with what to do, without a driver, a GPU of that number, or
 * kernels for it; OptionError for bad options.
 */
export function cuda(options?: CudaOptions): CudaDevice {
  return new CudaDevice(options);
}
