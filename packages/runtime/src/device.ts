import {
  type DType,
  type Device,
  type KernelFeature,
  type Kernels,
  type MemoryStats,
  type Shape,
  ShapeError,
  type Stream,
  Tensor,
  type TraceEvent,
  contiguousStrides,
  formatDevice,
  formatShape,
  inspectAsString,
  checkTensor,
  expectValue,
  checkDType,
} from "@mosaic/core";
import type { NativeHandle } from "./handle.ts";
import { nativeKernels } from "./kernel-arguments.ts";
import { type DeviceCalls, translateErrors } from "./runtime.ts";

/**
 * A device whose memory, transfers, kernels and trace are implemented by an addon. Subclasses add their stream and how
 * the device is opened. Disposing the device lets enqueued work finish, then frees all of its memory.
 */
export abstract class NativeDevice<Native extends DeviceCalls = DeviceCalls> implements Device {
  abstract readonly type: string;
  abstract readonly stream: Stream;
  readonly index: number;
  readonly kernels: Kernels;
  /** Features of the addon's kernels that are optional for a device. */
  readonly features: readonly KernelFeature[] = [];
  protected readonly handle: NativeHandle<Native>;

  constructor(index: number, handle: NativeHandle<Native>) {
    this.index = index;
    this.handle = handle;
    this.kernels = nativeKernels(this, handle);
  }

  static {
    inspectAsString(this.prototype);
  }

  /** Returns type and index, as shown by `console.log`. */
  toString(): string {
    return `Device ${formatDevice(this)}`;
  }

  /** Returns type and index, such as "cuda:0", for JSON.stringify, which rejects the handle of the stream. */
  toJSON(): string {
    return formatDevice(this);
  }

  /** @throws OutOfMemoryError with the sizes involved; ClosedError after dispose. */
  empty(shape: Shape, dtype: DType): Tensor {
    checkDType("empty", dtype);
    const storage = this.handle.allocate(shape, dtype);
    return new Tensor({ device: this, dtype, storage, shape, strides: contiguousStrides(shape), offset: 0 });
  }

  write(out: Tensor, values: ArrayLike<number>): void {
    checkTensor("write", out);
    expectValue(
      "write",
      Number.isSafeInteger((values as ArrayLike<number> | null)?.length),
      "an array of numbers",
      values,
    );
    if (values.length !== out.size) {
      throw new ShapeError({
        where: "write",
        expected: `${out.size} values for ${formatShape(out.shape)}`,
        received: String(values.length),
      });
    }
    const float32Values = values instanceof Float32Array ? values : Float32Array.from(values, toNumber);
    this.handle.begin("write").view(out, true);
    this.handle.launch(() => this.handle.native.write(float32Values));
    out.storage.recordMutation("write");
  }

  async read(x: Tensor): Promise<Float32Array> {
    checkTensor("read", x);
    const values = new Float32Array(x.size);
    await this.handle.expect("read", values, (_, args) => {
      args.view(x);
      this.handle.native.read(values);
    });
    return values;
  }

  memory(): MemoryStats {
    const [allocated, reserved, peak, , scratch] = this.handle.memory();
    return { allocated, reserved, peak, scratch };
  }

  resetPeakMemory(): void {
    this.handle.resetPeak();
  }

  /** Returns cached memory that no tensor uses to the system, once the work enqueued so far is done. */
  trim(): void {
    this.handle.trim();
  }

  startTrace(): void {
    this.handle.begin("startTrace");
    translateErrors(() => this.handle.native.startTrace());
  }

  async stopTrace(): Promise<readonly TraceEvent[]> {
    let completionId = 0;
    await this.handle.expect("stopTrace", undefined, (completion) => {
      completionId = completion;
      this.handle.native.stopTrace();
    });
    this.handle.begin("stopTrace").number(completionId);
    const traceFields = this.handle.native.takeTrace();
    return Array.from({ length: traceFields.length / 3 }, (_, i) => ({
      lane: "compute",
      name: traceFields[3 * i] as string,
      start: traceFields[3 * i + 1] as number,
      end: traceFields[3 * i + 2] as number,
    }));
  }

  [Symbol.dispose](): void {
    this.handle.close();
  }
}

function toNumber(value: unknown): number {
  expectValue("write: values", typeof value === "number", "numbers", value);
  return value as number;
}
