import {
  checkFeatures,
  compileKernel,
  contiguousStrides,
  type Device,
  DeviceError,
  type DType,
  dtypeBytes,
  type Fence,
  type KernelFeature,
  type KernelName,
  type Kernels,
  kernelFeatures,
  kernelSchema,
  type MemoryStats,
  type Operand,
  getOperands,
  type Shape,
  type Stream,
  numel,
  Tensor,
  getTensor,
  formatDevice,
} from "@mosaic/core";
import type { RankRecord } from "./rank-record.ts";
import { opcodes } from "./tape.ts";

/** The part of a device that `checkFeatures` reads. */
type FeatureDevice = Pick<Device, "type" | "index" | "features">;

/** Names that the generated source of recorders uses in addition to the kernel's parameters. */
const capturedNames = ["device", "record", "interned", "checkFeatures"] as const;

// Kernels that move or sum rows of attention have events of their own. Such an event has the operands in the order of
// the schema, then the rows and mask of a tile. A thousand ranks record millions of them, so the code that writes them
// is compiled.
const attend = compileKernel("attend", recorderSource("attend", opcodes.attend), capturedNames);
const attendBackward = compileKernel(
  "attendBackward",
  recorderSource("attendBackward", opcodes.attendBackward),
  capturedNames,
);
const merge = compileKernel("merge", recorderSource("merge", opcodes.merge), capturedNames);
const rowDot = compileKernel("rowDot", recorderSource("rowDot", opcodes.rowDot), capturedNames);
const copy = compileKernel("copy", recorderSource("copy", opcodes.copy), capturedNames);
const fill = compileKernel("fill", recorderSource("fill", opcodes.fill), capturedNames);
const add = compileKernel("binary", recorderSource("binary", opcodes.add), capturedNames);

const kernelRecorders = (Object.keys(kernelSchema) as KernelName[]).map(
  (kernel) => [kernel, createKernelRecorder(kernel)] as const,
);

/** Returns source code that writes an event with the operands of a kernel, then the other fields of the event. */
function recorderSource(kernel: KernelName, code: number): string {
  const parameters: readonly { readonly name: string }[] = kernelSchema[kernel];
  const hasParameter = (parameter: string): boolean => parameters.some(({ name }) => name === parameter);
  const views = getOperands(kernel)
    .filter(({ feature }) => feature === undefined) // slopes are constants, which are neither moved nor summed
    .map(({ name }) => `record.viewOf(${name})`);
  const tileArguments = hasParameter("tile")
    ? ["interned.rowsId(tile.q)", "interned.rowsId(tile.k)", "interned.tileMaskId(tile)"]
    : [];
  const fillArguments = kernel === "fill" ? ["interned.stringId(String(value))"] : [];
  const argumentSources = [...views, ...tileArguments, ...fillArguments];
  return [
    hasParameter("tile") ? "checkFeatures(device, kv, tile);" : "",
    `const at = record.open(${code}, ${argumentSources.length});`,
    ...argumentSources.map((argument, i) => `record.set(at + ${i}, ${argument});`),
  ].join("\n");
}

/** Creates kernels that record their operands in the order of the schema. */
function createKernels(device: FeatureDevice, record: RankRecord): Kernels {
  const values = { device, record, interned: record.interned, checkFeatures };
  const kernels = Object.fromEntries(
    kernelRecorders.map(([kernel, recorder]) => [kernel, recorder(record)]),
  ) as unknown as Kernels;
  const [recordAdd, recordBinary] = [add(values), kernels.binary];
  return {
    ...kernels,
    attend: attend(values),
    attendBackward: attendBackward(values),
    merge: merge(values),
    rowDot: rowDot(values),
    copy: copy(values),
    fill: fill(values),
    binary: (op, out, a, b) => (op === "add" ? recordAdd : recordBinary)(op, out, a, b),
  };
}

/**
 * Creates the recorder of any other kernel. Its event has the kernel's name, the views that it mutates and those that
 * it reads.
 */
function createKernelRecorder(kernel: KernelName): (record: RankRecord) => (...args: readonly unknown[]) => void {
  const operands = getOperands(kernel);
  const mutatedOperands = operands.filter(({ isMutated }) => isMutated);
  const readOnlyOperands = operands.filter(({ isMutated }) => !isMutated);
  const hasEnumParameter = "enum" in kernelSchema[kernel][0];
  const suffix = kernel.endsWith("Backward") ? "Backward" : "";
  return (record) =>
    (...args) => {
      const listViews = (selectedOperands: readonly Operand[]): number[] =>
        selectedOperands.flatMap((operand) => {
          const tensor = getTensor(operand, args);
          return tensor === null ? [] : [record.viewOf(tensor)];
        });
      const outputs = listViews(mutatedOperands);
      const readWriteOperands = mutatedOperands.filter(
        ({ isRead, readFlagIndex }) => isRead || (readFlagIndex !== undefined && args[readFlagIndex] === true),
      );
      const name = record.interned.stringId(hasEnumParameter ? `${args[0] as string}${suffix}` : kernel);
      record.push(opcodes.compute, [
        name,
        outputs.length,
        ...outputs,
        ...listViews(readOnlyOperands),
        ...listViews(readWriteOperands),
      ]);
      for (const operand of mutatedOperands) getTensor(operand, args)?.storage.recordMutation(kernel);
    };
}

/**
 * A device of type "symbolic": its tensors have shapes but no memory, and its kernels only record that they were
 * called. The same code runs on it as on any other device, but computed values cannot be read.
 */
export class SymbolicDevice implements Device {
  readonly type = "symbolic";
  readonly features: readonly KernelFeature[] = kernelFeatures;
  readonly index: number;
  readonly stream: Stream;
  readonly kernels: Kernels;
  readonly record: RankRecord;
  #allocatedBytes = 0;
  #peakBytes = 0;
  readonly #onFree = (bytes: number): void => {
    this.#allocatedBytes -= bytes;
  };

  constructor(record: RankRecord) {
    this.record = record;
    this.index = record.rank;
    this.kernels = createKernels(this, record);
    this.stream = new SymbolicStream();
  }

  empty(shape: Shape, dtype: DType): Tensor {
    const size = numel(shape);
    this.#allocatedBytes += size * dtypeBytes[dtype];
    this.#peakBytes = Math.max(this.#peakBytes, this.#allocatedBytes);
    const storage = this.record.allocate(size, dtype, this.#onFree);
    return new Tensor({ device: this, dtype, storage, shape, strides: contiguousStrides(shape), offset: 0 });
  }

  write(out: Tensor): void {
    this.record.push(opcodes.compute, [this.record.interned.stringId("write"), 1, this.record.viewOf(out)]);
    out.storage.recordMutation("write");
  }

  /** Rejects, because a symbolic tensor has no values. */
  async read(x: Tensor): Promise<Float32Array> {
    throw new DeviceError({
      where: "read",
      expected: "a tensor with values",
      received: String(x),
      remedy: "run the program on a device that computes; a symbolic device only records operations",
    });
  }

  memory(): MemoryStats {
    return { allocated: this.#allocatedBytes, reserved: this.#allocatedBytes, peak: this.#peakBytes };
  }

  resetPeakMemory(): void {
    this.#peakBytes = this.#allocatedBytes;
  }

  startTrace(): void {}

  /** Returns no events, because nothing runs. */
  async stopTrace(): Promise<[]> {
    return [];
  }

  /** Returns type and index, such as "symbolic:0", for JSON.stringify. */
  toJSON(): string {
    return formatDevice(this);
  }

  [Symbol.dispose](): void {}
}

/** A stream whose order is that of the tape. */
class SymbolicStream implements Stream {
  readonly handle = 0n;

  record(): Fence {
    return { stream: this };
  }

  wait(): void {}

  async synchronize(): Promise<void> {}
}
