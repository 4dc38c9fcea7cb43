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
  /** Which GPU, as the driver numbers those that are visible. Default: the rank's number on its host, as the launcher sets it, else 0. */
  index: option.integer({ min: 0, optional: true }),
  /** Bytes that tensors may take, and what kernels hold to work in. Default: what the GPU has. */
  memoryLimit: option.integer({ min: 0, optional: true }),
  /** Whether products of float32 matrices may round their factors to TF32: 10 bits of mantissa, and faster. Default false. */
  tf32: option.boolean({ default: false }),
});
/** What `cuda` takes. */
export type CudaOptions = OptionsOf<typeof cudaOptions>;

/** A GPU as a device: what is enqueued runs in order on one stream; the host only enqueues. */
export class CudaDevice extends NativeDevice<CudaAddon> {
  readonly type = "cuda";
  override readonly features: readonly KernelFeature[] = [
    "softcap",
    "slopes",
    "dropout",
    "sampleMasks",
    "valueHeadSize",
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
      remedy: "dispose tensors, or shard the sequence over more ranks",
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
