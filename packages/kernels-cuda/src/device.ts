import {
  checkArgument,
  defineOptions,
  type Fence,
  type KernelFeature,
  localRank,
  option,
  OptionError,
  type OptionsOf,
  type Stream,
} from "@mosaic/core";
import { NativeDevice, NativeHandle, translateErrors } from "@mosaic/runtime";
import { type CudaAddon, type Event, getAddon } from "./addon.ts";

class CudaFence implements Fence {
  readonly stream: CudaStream;
  readonly event: Event;

  constructor(stream: CudaStream, event: Event) {
    this.stream = stream;
    this.event = event;
  }
}

/** The compute stream of one GPU; its `handle` is a cudaStream_t. */
class CudaStream implements Stream {
  readonly handle: bigint;
  readonly port: bigint;
  readonly #device: NativeHandle<CudaAddon>;

  constructor(device: NativeHandle<CudaAddon>) {
    this.#device = device;
    this.handle = device.streamAddress;
    this.port = BigInt(device.deviceInfo[1]!);
  }

  record(): Fence {
    this.#device.begin("record");
    return new CudaFence(
      this,
      translateErrors(() => this.#device.native.record()),
    );
  }

  /** @throws OptionError for a fence of another device type. */
  wait(fence: Fence): void {
    if (fence.stream === this) return;
    if (!(fence instanceof CudaFence)) {
      throw new OptionError({
        where: "stream.wait",
        expected: "a fence of a CUDA stream",
        received: "a fence of another device type",
        remedy: "synchronize the other device before enqueueing work that needs its results",
      });
    }
    this.#device.begin("wait");
    translateErrors(() => this.#device.native.wait(fence.event));
  }

  synchronize(): Promise<void> {
    return this.#device.expect("synchronize", undefined, () => this.#device.native.synchronize());
  }
}

export const cudaOptions = defineOptions("cuda", {
  /** Index of the GPU among the visible ones. Default: the local rank that the launcher sets, else 0. */
  index: option.integer({ min: 0, optional: true }),
  /** Limit in bytes for tensors plus kernels' scratch memory. Default: the GPU's memory. */
  memoryLimit: option.integer({ min: 0, optional: true }),
  /**
   * Whether products of float32 matrices may round their factors to TF32 (10-bit mantissa), which is faster. Default
   * false.
   */
  tf32: option.boolean({ default: false }),
});
/** Options of `cuda`. */
export type CudaOptions = OptionsOf<typeof cudaOptions>;

/** A GPU as a device. Enqueued work runs in order on one stream; the host only enqueues. */
export class CudaDevice extends NativeDevice<CudaAddon> {
  readonly type = "cuda";
  override readonly features: readonly KernelFeature[] = [
    "softcap",
    "slopes",
    "dropout",
    "sampleMasks",
    "valueHeadDim",
  ];
  readonly stream: CudaStream;
  /** Compute capability: 80 for 8.0. */
  readonly capability: number;

  constructor(options?: CudaOptions) {
    const { index: indexOption, memoryLimit = 0, tf32 } = cudaOptions.parse(options);
    const index = indexOption ?? localRank() ?? 0;
    checkArgument("cuda: local rank", index, cudaOptions.fields.index);
    const handle = new NativeHandle(getAddon(), {
      name: `cuda:${index}`,
      options: [index, memoryLimit, Number(tf32)],
      remedy: "release the tensors of each step with scope(() => …), or shard the sequence over more ranks",
    });
    super(index, handle);
    this.capability = handle.deviceInfo[0]!;
    this.stream = new CudaStream(handle);
  }
}

/**
 * Creates a CUDA device. The package installs and loads without a GPU; this function requires one.
 *
 * @throws AddonLoadError if the addon is missing; DeviceError, with a remedy, if there is no driver, no GPU with that
 * index, or no kernels for it; OptionError for invalid options.
 */
export function cuda(options?: CudaOptions): CudaDevice {
  return new CudaDevice(options);
}
