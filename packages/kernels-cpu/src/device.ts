import {
  contiguousStrides,
  type Device,
  type DType,
  dtypeBytes,
  formatShape,
  type Kernels,
  type MemoryStats,
  type Shape,
  ShapeError,
  sizeOf,
  Tensor,
  type TraceEvent,
} from "@mosaic/core";
import { NativeKernels } from "@mosaic/core/native";
import { Handle } from "./handle.ts";
import { type CpuOptions, memoryLimit, threadCount } from "./options.ts";
import type { Isa } from "./runtime.ts";
import { CpuStream } from "./stream.ts";

/**
 * The processor as a device: a native thread runs what is enqueued, in order, with a pool of workers to help; the host
 * only enqueues. Disposing it lets enqueued work finish, then frees all of its memory.
 */
export class CpuDevice implements Device {
  readonly type = "cpu";
  readonly index: number;
  readonly stream: CpuStream;
  readonly kernels: Kernels;
  /** Threads that compute, the stream's own included. */
  readonly threads: number;
  /** The instruction set that its kernels run on. */
  readonly isa: Isa;
  readonly #handle: Handle;

  constructor(options: CpuOptions = {}) {
    this.index = options.index ?? 0;
    this.threads = threadCount(options.threads);
    this.#handle = new Handle({
      name: `cpu:${this.index}`,
      threads: this.threads,
      memoryLimit: memoryLimit(options.memoryLimit),
    });
    this.isa = this.#handle.isa;
    this.stream = new CpuStream(this.#handle);
    this.kernels = new NativeKernels(this.#handle);
  }

  /** @throws OutOfMemoryError with the sizes involved; ClosedError after dispose. */
  empty(shape: Shape, dtype: DType): Tensor {
    const where = `empty ${formatShape(shape)} ${dtype}`;
    const storage = this.#handle.allocate(sizeOf(shape) * dtypeBytes[dtype], where);
    return new Tensor({ device: this, dtype, storage, shape, strides: contiguousStrides(shape), offset: 0 });
  }

  write(out: Tensor, values: ArrayLike<number>): void {
    if (values.length !== out.size) {
      throw new ShapeError({
        where: "write",
        expected: `${out.size} values for ${formatShape(out.shape)}`,
        received: String(values.length),
      });
    }
    const floats = values instanceof Float32Array ? values : Float32Array.from(values);
    this.#handle.begin("write").view(out);
    this.#handle.launch(() => this.#handle.native.write(floats));
  }

  async read(x: Tensor): Promise<Float32Array> {
    const values = new Float32Array(x.size);
    await this.#handle.expect("read", values, (_, scratch) => {
      scratch.view(x);
      this.#handle.native.read(values);
    });
    return values;
  }

  memory(): MemoryStats {
    const [allocated, reserved, peak] = this.#handle.memory();
    return { allocated, reserved, peak };
  }

  resetPeakMemory(): void {
    this.#handle.begin("resetPeakMemory");
    this.#handle.native.resetPeak();
  }

  /** Gives cached memory that no tensor uses back to the system, once the work so far is done. */
  trim(): void {
    this.#handle.begin("trim");
    this.#handle.native.trim();
  }

  startTrace(): void {
    this.#handle.begin("startTrace");
    this.#handle.native.startTrace();
  }

  async stopTrace(): Promise<readonly TraceEvent[]> {
    let announced = 0;
    await this.#handle.expect("stopTrace", undefined, (letter) => {
      announced = letter;
      this.#handle.native.stopTrace();
    });
    this.#handle.begin("stopTrace").number(announced);
    const flat = this.#handle.native.takeTrace();
    return Array.from({ length: flat.length / 3 }, (_, i) => ({
      lane: "compute",
      name: flat[3 * i] as string,
      start: flat[3 * i + 1] as number,
      end: flat[3 * i + 2] as number,
    }));
  }

  [Symbol.dispose](): void {
    this.#handle.close();
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
 * @throws AddonLoadError if the native addon is missing or was built for something else; OptionError for bad options.
 */
export function cpu(options: CpuOptions = {}): CpuDevice {
  return new CpuDevice(options);
}
