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
} from "@mosaic/core";
import type { RankRecord } from "./rank-record.ts";
import { opcodes } from "./tape.ts";

/** A device whose features `checkFeatures` reads. */
type FeatureDevice = Pick<Device, "type" | "index" | "features">;

/** Names that the source of recorders uses, beside the parameters of the kernel. */
const capturedNames = ["device", "record", "interned", "checkFeatures"] as const;

// Kernels that move or sum rows of attention have events of their own: their operands, in the order of the schema, and what
// a tile states of rows. A thousand ranks make millions of them, so that what writes them is compiled.
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

/** Source that writes an event of a kernel's operands, then of the other fields of the tape. */
function recorderSource(kernel: KernelName, code: number): string {
  const parameters: readonly { readonly name: string }[] = kernelSchema[kernel];
  const hasParameter = (parameter: string): boolean => parameters.some(({ name }) => name === parameter);
  const views = getOperands(kernel)
    .filter(({ feature }) => feature === undefined) // slopes: constants, of which nothing is moved or summed
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

/** Kernels that write down their operands, as the schema lists them. */
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

/** Writes the event of any other kernel: its name, what it mutates, what it reads. */
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
 * A device of type "symbolic": its tensors have shapes and no memory, its kernels write down that they were called. Code
 * that runs on it is the very code that runs elsewhere; what it would have computed cannot be read.
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

  /** Rejects: there is nothing to read. */
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

  /** Nothing runs, so nothing takes time. */
  async stopTrace(): Promise<[]> {
    return [];
  }

  [Symbol.dispose](): void {}
}

/** Its order is that of the tape. */
class SymbolicStream implements Stream {
  readonly handle = 0n;

  record(): Fence {
    return { stream: this };
  }

  wait(): void {}

  async synchronize(): Promise<void> {}
}
