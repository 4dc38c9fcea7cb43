import type { Device, MemoryStats, TraceEvent } from "../../src/device.ts";
import { type DType, dtypeBytes, FinalizedStorage } from "../../src/storage.ts";
import { ClosedError, ShapeError } from "../../src/errors.ts";
import { checkFeatures } from "../../src/attention/check.ts";
import type { KvBlock, Tile } from "../../src/attention/tile.ts";
import type { Kernels } from "../../src/kernels/kernels.ts";
import { kernelFeatures } from "../../src/kernels/schema.ts";
import { versionedKernels } from "../../src/kernels/operands.ts";
import "../../src/methods.ts";
import { contiguousStrides, type Shape, numel } from "../../src/shape.ts";
import { Tensor } from "../../src/tensor.ts";
import { attend } from "./attend.ts";
import { elementwise } from "./elementwise.ts";
import { matmul } from "./matmul.ts";
import { Memory } from "./memory.ts";
import { random } from "./random.ts";
import { rows } from "./rows.ts";
import { ReferenceStream, Scheduler } from "./stream.ts";
import { training } from "./training.ts";

export interface ReferenceOptions {
  /** Keep float32 tensors in float64, for finite differences. */
  readonly double?: boolean;
  /** Shared by devices that communicate. */
  readonly scheduler?: Scheduler;
  readonly index?: number;
}

/**
 * A minimal device in plain TypeScript that satisfies the contracts, for tests that need any device. Like a real
 * device, it runs work asynchronously. Unlike one, it is slow and detects misuse.
 */
export class ReferenceDevice implements Device {
  readonly type = "reference";
  readonly features = kernelFeatures;
  readonly index: number;
  readonly stream: ReferenceStream;
  readonly kernels: Kernels;
  readonly #memory: Memory;
  #allocated = 0;
  #peak = 0;
  #closed = false;
  #trace: TraceEvent[] | undefined;

  constructor({ double = false, scheduler = new Scheduler(), index = 0 }: ReferenceOptions = {}) {
    this.index = index;
    this.#memory = new Memory(double);
    this.stream = new ReferenceStream(scheduler);
    const kernelGroups = [attend, elementwise, matmul, random, rows, training].map((createKernels) =>
      createKernels(this.#memory),
    );
    this.kernels = versionedKernels(this.#enqueueKernels(Object.assign({}, ...kernelGroups) as Kernels));
  }

  /** Wraps kernels so that they run in stream order. Operands must not be disposed at the call, as on any device. */
  #enqueueKernels(kernels: Kernels): Kernels {
    const entries = Object.entries(kernels as Record<string, (...args: unknown[]) => void>).map(([name, kernel]) => [
      name,
      (...args: unknown[]) => {
        if (name.startsWith("attend")) checkFeatures(this, args.at(-2) as KvBlock, args.at(-1) as Tile);
        for (const x of listTensors(args)) x.assertNotDisposed(`kernel ${name}`);
        this.#submit(name, () => kernel(...args));
      },
    ]);
    return Object.fromEntries(entries) as Kernels;
  }

  #submit(name: string, run: () => void): void {
    if (this.#closed) throw new ClosedError({ where: name, expected: "an open device" });
    this.stream.submit(() => {
      const start = performance.now();
      run();
      this.#trace?.push({ lane: "compute", name, start: start * 1e6, end: performance.now() * 1e6 });
      return true;
    });
  }

  empty(shape: Shape, dtype: DType): Tensor {
    const size = numel(shape);
    const handle = this.#memory.allocate(size);
    const byteLength = size * dtypeBytes[dtype];
    this.#allocated += byteLength;
    this.#peak = Math.max(this.#peak, this.#allocated);
    const storage = new FinalizedStorage(handle, byteLength, () => {
      this.#allocated -= byteLength;
      this.stream.submit(() => {
        this.#memory.free(handle);
        return true;
      });
    });
    return new Tensor({
      device: this,
      dtype,
      storage,
      shape: [...shape],
      strides: contiguousStrides(shape),
      offset: 0,
    });
  }

  write(out: Tensor, values: ArrayLike<number>): void {
    out.assertNotDisposed("write");
    if (values.length !== out.size) throw new ShapeError({ where: "write", expected: `${out.size} values` });
    const copiedValues = Array.from(values);
    this.#submit("write", () => this.#memory.store(out, copiedValues));
    out.storage.recordMutation("write");
  }

  read(x: Tensor): Promise<Float32Array> {
    return this.values(x).then((values) => Float32Array.from(values));
  }

  /** Resolves to the values without rounding to float32. */
  values(x: Tensor): Promise<number[]> {
    x.assertNotDisposed("read");
    x.storage.retain();
    return this.stream.runWhenReached(() => this.#memory.load(x)).finally(() => x.storage.release());
  }

  /** Runs the work enqueued so far, which a real device does asynchronously. */
  flush(): void {
    this.stream.scheduler.run();
  }

  /** Returns a tensor's values for a collective. */
  load(x: Tensor): number[] {
    return this.#memory.load(x);
  }

  store(out: Tensor, values: readonly number[]): void {
    this.#memory.store(out, values);
  }

  memory(): MemoryStats {
    return { allocated: this.#allocated, reserved: this.#allocated, peak: this.#peak };
  }

  resetPeakMemory(): void {
    this.#peak = this.#allocated;
  }

  startTrace(): void {
    this.#trace = [];
  }

  async stopTrace(): Promise<readonly TraceEvent[]> {
    await this.stream.synchronize();
    const trace = this.#trace ?? [];
    this.#trace = undefined;
    return trace;
  }

  [Symbol.dispose](): void {
    this.#closed = true;
  }
}

/** Lists the tensors among a kernel's arguments and in their fields. */
function listTensors(args: readonly unknown[]): Tensor[] {
  return args.flatMap((arg) => {
    if (arg instanceof Tensor) return [arg];
    if (arg === null || typeof arg !== "object") return [];
    return Object.values(arg).filter((value) => value instanceof Tensor);
  });
}
