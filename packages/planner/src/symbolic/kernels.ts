import {
  checkFeatures,
  compileKernel,
  type Device,
  type KernelName,
  type Kernels,
  kernelSchema,
  type Operand,
  operandsOf,
  tensorOf,
} from "@mosaic/core";
import type { RankRecord } from "./rank-record.ts";
import { codeOf } from "./tape.ts";

/** A device whose features `checkFeatures` reads. */
type FeatureDevice = Pick<Device, "type" | "index" | "features">;

/** Names that the source of recorders uses, beside the parameters of the kernel. */
const capturedNames = ["device", "record", "names", "checkFeatures"] as const;

// Kernels that move or sum rows of attention have events of their own: their operands, in the order of the schema, and what
// a tile states of rows. A thousand ranks make millions of them, so that what writes them is compiled.
const attend = compileKernel("attend", eventSource("attend", codeOf.attend), capturedNames);
const attendBackward = compileKernel(
  "attendBackward",
  eventSource("attendBackward", codeOf.attendBackward),
  capturedNames,
);
const merge = compileKernel("merge", eventSource("merge", codeOf.merge), capturedNames);
const rowDot = compileKernel("rowDot", eventSource("rowDot", codeOf.rowDot), capturedNames);
const copy = compileKernel("copy", eventSource("copy", codeOf.copy), capturedNames);
const fill = compileKernel("fill", eventSource("fill", codeOf.fill), capturedNames);
const add = compileKernel("binary", eventSource("binary", codeOf.add), capturedNames);

const computeRecorders = (Object.keys(kernelSchema) as KernelName[]).map(
  (kernel) => [kernel, computeRecorder(kernel)] as const,
);

/** Source that writes an event of a kernel's operands, then of the other fields of the tape. */
function eventSource(kernel: KernelName, code: number): string {
  const parameters: readonly { readonly name: string }[] = kernelSchema[kernel];
  const has = (parameter: string): boolean => parameters.some(({ name }) => name === parameter);
  const views = operandsOf(kernel)
    .filter(({ feature }) => feature === undefined) // what has a feature is refused
    .map(({ name }) => `record.viewOf(${name})`);
  const rows = has("tile") ? ["names.rowsOf(tile.q)", "names.rowsOf(tile.k)", "names.maskOf(tile.mask)"] : [];
  const value = kernel === "fill" ? ["names.word(String(value))"] : [];
  const numbers = [...views, ...rows, ...value];
  return [
    has("tile") ? "checkFeatures(device, kv, tile);" : "",
    `const at = record.open(${code}, ${numbers.length});`,
    ...numbers.map((number, i) => `record.set(at + ${i}, ${number});`),
  ].join("\n");
}

/** Kernels that write down their operands, as the schema lists them. */
export function symbolicKernels(device: FeatureDevice, record: RankRecord): Kernels {
  const values = { device, record, names: record.names, checkFeatures };
  const kernels = Object.fromEntries(
    computeRecorders.map(([kernel, recorder]) => [kernel, recorder(record)]),
  ) as unknown as Kernels;
  const [recordAdd, otherBinary] = [add(values), kernels.binary];
  return {
    ...kernels,
    attend: attend(values),
    attendBackward: attendBackward(values),
    merge: merge(values),
    rowDot: rowDot(values),
    copy: copy(values),
    fill: fill(values),
    binary: (op, out, a, b) => (op === "add" ? recordAdd : otherBinary)(op, out, a, b),
  };
}

/** Writes the event of any other kernel: its name, what it mutates, what it reads. */
function computeRecorder(kernel: KernelName): (record: RankRecord) => (...args: readonly unknown[]) => void {
  const operands = operandsOf(kernel);
  const mutated = operands.filter(({ isMutated }) => isMutated);
  const onlyRead = operands.filter(({ isMutated }) => !isMutated);
  const isNamed = "enum" in kernelSchema[kernel][0];
  const suffix = kernel.endsWith("Backward") ? "Backward" : "";
  return (record) =>
    (...args) => {
      const viewsOf = (some: readonly Operand[]): number[] =>
        some.flatMap((operand) => {
          const tensor = tensorOf(operand, args);
          return tensor === null ? [] : [record.viewOf(tensor)];
        });
      const outputs = viewsOf(mutated);
      const updated = mutated.filter(({ isRead, readIf }) => isRead || (readIf !== undefined && args[readIf] === true));
      const name = record.names.word(isNamed ? `${args[0] as string}${suffix}` : kernel);
      record.push(codeOf.compute, [name, outputs.length, ...outputs, ...viewsOf(onlyRead), ...viewsOf(updated)]);
      for (const operand of mutated) tensorOf(operand, args)?.storage.recordMutation(kernel);
    };
}
