import { type Fence, OptionError, type Stream } from "@mosaic/core";
import type { Event, Native } from "./addon.ts";
import { type NativeHandle, translated } from "@mosaic/runtime";

class CudaFence implements Fence {
  readonly stream: CudaStream;
  readonly event: Event;

  constructor(stream: CudaStream, event: Event) {
    this.stream = stream;
    this.event = event;
  }
}

/** The compute stream of one GPU; its `handle` is a cudaStream_t. */
export class CudaStream implements Stream {
  readonly handle: bigint;
  readonly port: bigint;
  readonly #device: NativeHandle<Native>;

  constructor(device: NativeHandle<Native>) {
    this.#device = device;
    this.handle = device.streamAddress;
    this.port = BigInt(device.deviceInfo[1]!);
  }

  record(): Fence {
    this.#device.begin("record");
    return new CudaFence(
      this,
      translated(() => this.#device.native.record()),
    );
  }

  /** @throws OptionError for a fence of another kind of device. */
  wait(fence: Fence): void {
    if (fence.stream === this) return;
    if (!(fence instanceof CudaFence)) {
      throw new OptionError({
        where: "stream.wait",
        expected: "a fence of a CUDA stream",
        received: "a fence of another kind of device",
        remedy: "synchronize the other device before enqueueing work that needs its results",
      });
    }
    this.#device.begin("wait");
    translated(() => this.#device.native.wait(fence.event));
  }

  synchronize(): Promise<void> {
    return this.#device.expect("synchronize", undefined, () => this.#device.native.synchronize());
  }
}
