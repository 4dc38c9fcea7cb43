import { type Fence, OptionError, type Stream } from "@mosaic/core";
import type { NativeHandle } from "@mosaic/runtime";
import type { Native } from "./addon.ts";

class CpuFence implements Fence {
  readonly stream: CpuStream;
  /** Works submitted to the stream before the fence. */
  readonly position: number;

  constructor(stream: CpuStream, position: number) {
    this.stream = stream;
    this.position = position;
  }
}

/** The queue of one CPU device; its `handle` is a `MosaicStream *` (packages/runtime/include/mosaic/stream.h). */
export class CpuStream implements Stream {
  readonly handle: bigint;
  readonly #device: NativeHandle<Native>;

  constructor(device: NativeHandle<Native>) {
    this.#device = device;
    this.handle = device.streamAddress;
  }

  record(): Fence {
    this.#device.begin("record");
    this.#device.native.record();
    return new CpuFence(this, this.#device.results[0]!);
  }

  /** @throws OptionError for a fence of another kind of device. */
  wait(fence: Fence): void {
    if (fence.stream === this) return;
    if (!(fence instanceof CpuFence)) {
      throw new OptionError({
        where: "stream.wait",
        expected: "a fence of a CPU stream",
        received: "a fence of another kind of device",
        remedy: "synchronize the other device before enqueueing work that needs its results",
      });
    }
    this.#device.begin("wait").number(fence.stream.#device.address).number(fence.position);
    this.#device.native.wait();
  }

  synchronize(): Promise<void> {
    return this.#device.expect("synchronize", undefined, () => this.#device.native.synchronize());
  }
}
