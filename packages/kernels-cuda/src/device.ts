import {
  contiguousStrides,
  type Device,
  type DType,
  dtypeBytes,
  formatShape,
  type Kernels,
  type MemoryStats,
  OptionError,
  type Shape,
  ShapeError,
  sizeOf,
  Tensor,
  type TraceEvent,
} from "@mosaic/core";
import { NativeKernels } from "@mosaic/core/native";
import { Handle } from "./handle.ts";
import { CudaStream } from "./stream.ts";

export interface CudaOptions {
  /** Which GPU, as the driver numbers those that are visible. Default: LOCAL_RANK modulo their number, else 0. */
  readonly index?: number;
  /** Bytes that may be allocated. Default: what the GPU has. */
  readonly memoryLimit?: number;
}

/** A GPU as a device: what is enqueued runs in order on one stream; the host only enqueues. */
export class CudaDevice implements Device {
  readonly type = "cuda";
  readonly index: number;
  readonly stream: CudaStream;
  readonly kernels: Kernels;
  /** Compute capability: 80 for 8.0. */
  readonly capability: number;
  readonly #handle: Handle;

  constructor({ index = Number(process.env.LOCAL_RANK ?? 0), memoryLimit = 0 }: CudaOptions = {}) {
    if (!Number.isSafeInteger(index) || index < 0) {
      throw new OptionError({ where: "cuda({ index })", expected: "a whole number from 0", received: String(index) });
    }
    this.index = index;
    this.#handle = new Handle({ index, memoryLimit });
    this.capability = this.#handle.capability;
    this.stream = new CudaStream(this.#handle);
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
 * A CUDA device. The package installs and loads without a GPU; this is where one is needed.
 *
 * @throws AddonLoadError if the addon is missing; DeviceError, with what to do, without a driver, a GPU of that number, or
 * kernels for it; OptionError for bad options.
 */
export function cuda(options: CudaOptions = {}): CudaDevice {
  return new CudaDevice(options);
}
