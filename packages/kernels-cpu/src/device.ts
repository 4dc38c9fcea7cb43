import { NativeDevice, NativeHandle } from "@mosaic/runtime";
import type { Native } from "./addon.ts";
import { type CpuOptions, cpuOptions, memoryLimit, threadCount } from "./options.ts";
import { type Isa, instructionSets, runtime } from "./runtime.ts";
import { CpuStream } from "./stream.ts";

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
  readonly isa: Isa;

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
    this.isa = isa;
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
