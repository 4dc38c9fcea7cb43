import { type Fence, OptionError, type Stream } from "@mosaic/core";
import { NativeDevice, NativeHandle } from "@mosaic/runtime";
import { type CpuOptions, cpuOptions, memoryLimit, threadCount } from "./options.ts";
import { instructionSets, type Isa, type Native, runtime } from "./runtime.ts";

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
class CpuStream implements Stream {
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

/**
 * The processor as a device: a native thread runs what is enqueued, in order, with a pool of workers to help; the host
 * only enqueues. Disposing it lets enqueued work finish, then frees all of its memory.
 */
export class CpuDevice extends NativeDevice<Native> {
  readonly type = "cpu";
  readonly stream: CpuStream;
  /** Threads that compute, the stream's own included. */
  readonly threads: number;
  /** The instruction set that its kernels run on. */
  readonly instructionSet: Isa;

  constructor(options?: CpuOptions) {
    const { index, threads, memoryLimit: limit } = cpuOptions.parse(options);
    const count = threadCount(threads);
    const isa = instructionSets()[0]!;
    const handle = new NativeHandle(runtime(), {
      name: `cpu:${index}`,
      options: [count, memoryLimit(limit)],
      remedy: "dispose tensors, cut the sequence over more ranks, or raise MOSAIC_MEMORY_LIMIT",
    });
    super(index, handle);
    this.threads = count;
    this.instructionSet = isa;
    this.stream = new CpuStream(handle);
  }
}

/**
 * A CPU device: any number may live in one process.
 *
 * @example
 * ```ts
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu({ threads: 1 });
 * using x = device.empty([2, 2], "float32");
 * using square = device.empty([2, 2], "float32");
 * device.write(x, [1, 2, 3, 4]);
 * device.kernels.matmul(square, x, x, false); // returns at once
 * Array.from(await square.read()); // => [7, 10, 15, 22]
 * ```
 * @throws AddonLoadError if the native addon is missing or was built for something else; OptionError for bad options;
 * DeviceError if the system does not give as many threads.
 */
export function cpu(options?: CpuOptions): CpuDevice {
  return new CpuDevice(options);
}
