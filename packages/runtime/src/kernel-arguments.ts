import {
  checkFeatures,
  checkTile,
  compileKernel,
  type Device,
  type DType,
  DTypeError,
  type Field,
  kernelEnumerations,
  type KernelName,
  type Kernels,
  kernelSchema,
  kernelStructures,
  OptionError,
  type Tensor,
} from "@mosaic/core";
import type { ArgumentBuffer } from "./argument-buffer.ts";

// Methods that write the arguments of a kernel into the argument buffer in the order of the schema, where
// include/mosaic/kernel_arguments.h reads them. They are compiled once, when this module loads. The method of `fill` is
//
//   function fill(out, value) { const args = host.begin("fill"); args.view(out, true); args.number(value); host.launch(call); }

/** Native call of one kernel. Its arguments are in the argument buffer. */
export type KernelCall = () => void;

/** The kernels that an addon exports, by name. */
export type KernelCalls = Readonly<Record<KernelName, KernelCall>>;

/** The part of a native device that its kernels use. */
export interface KernelHost {
  readonly native: KernelCalls;
  /** Returns the argument buffer, ready for the arguments of a call. */
  begin(where: string): ArgumentBuffer;
  /** Makes a call that submits work; throws the stream's failure if it has failed. */
  launch(call: KernelCall): void;
}

/** Variables that the generated methods use in addition to their parameters. */
const freeVariables = [
  "device",
  "host",
  "call",
  "checkFeatures",
  "checkTile",
  "codes",
  "rejectDType",
  "rejectValue",
] as const;

/** The device whose features `checkFeatures` checks. */
type FeatureDevice = Pick<Device, "type" | "index" | "features">;

const methodFactories = (Object.keys(kernelSchema) as KernelName[]).map(
  (kernel) => [kernel, compileKernel(kernel, methodSource(kernel), freeVariables)] as const,
);

function methodSource(kernel: KernelName): string {
  const parameters: readonly Field[] = kernelSchema[kernel];
  const [first] = parameters as [Field];
  // Errors name the operation that the user called, for example "add" rather than "binary".
  const where = "enum" in first ? first.name : JSON.stringify(kernel);
  return [
    parameters.some(({ name }) => name === "tile") ? "checkFeatures(device, kv, tile);\ncheckTile(q, kv, tile);" : "",
    `const args = host.begin(${where});`,
    ...parameters.map((field) => fieldSource(field, { value: field.name, where: `${kernel}: ${field.name}` })),
    "host.launch(call);",
  ].join("\n");
}

/** A field of a call. */
interface FieldUse {
  /** The field's expression. */
  readonly value: string;
  /** Names the field in errors. */
  readonly where: string;
  /** Whether the call only reads the structure that contains the field, although its fields declare otherwise. */
  readonly isReadOnly?: boolean;
}

/** Returns source code that writes a field. */
function fieldSource(field: Field, { value, where, isReadOnly = false }: FieldUse): string {
  const absenceTestSource = `${value} === null || ${value} === undefined`;
  if ("struct" in field) {
    const fields: readonly Field[] = kernelStructures[field.struct];
    const memberSources = fields
      .map((structField) =>
        fieldSource(structField, {
          value: memberSource(structField, value),
          where: `${where}.${structField.name}`,
          isReadOnly: field.access === "read",
        }),
      )
      .join("\n");
    return field.optional
      ? `if (${absenceTestSource}) args.number(0); else { args.number(1);\n${memberSources}\n}`
      : memberSources;
  }
  if ("tensor" in field) {
    const [whereLiteral, dtype] = [JSON.stringify(where), JSON.stringify(field.dtype)];
    const dtypeCheck = field.dtype
      ? `if (${value}.dtype !== ${dtype}) rejectDType(${value}, ${dtype}, ${whereLiteral});`
      : "";
    const viewSource = `view(${value}, ${field.tensor !== "read" && !isReadOnly})`;
    if (!field.optional) return `${dtypeCheck} args.${viewSource};`;
    return `if (${absenceTestSource}) args.number(0); else { ${dtypeCheck} args.number(1).${viewSource}; }`;
  }
  if ("enum" in field) {
    const [name, whereLiteral] = [JSON.stringify(field.enum), JSON.stringify(where)];
    const code = `args.number(codes[${name}][${value}] ?? rejectValue(${name}, ${value}, ${whereLiteral}));`;
    return field.optional ? `if (${absenceTestSource}) args.number(0); else { args.number(1); ${code} }` : code;
  }
  if ("list" in field) return `args.${field.list}(${value}${field.optional ? " ?? []" : ""});`;
  if (field.scalar === "boolean") return `args.number(${value} ? 1 : 0);`;
  return `args.number(${value}${field.optional ? " ?? 0" : ""});`;
}

/**
 * Returns the expression of a structure's field, such as `state.out`. The field's name may depend on the structure's
 * `kind`.
 */
function memberSource(field: Field, structure: string): string {
  if (!("names" in field)) return `${structure}.${field.name}`;
  return `${structure}[${JSON.stringify(field.names)}[${structure}.kind]]`;
}

/** Numeric code of each value, by enumeration. */
const codes = Object.fromEntries(
  Object.entries(kernelEnumerations).map(([name, values]) => [
    name,
    Object.fromEntries(values.map((value, code) => [value, code])),
  ]),
);

function rejectValue(enumeration: keyof typeof kernelEnumerations, received: unknown, where: string): never {
  throw new OptionError({
    where,
    expected: `one of ${kernelEnumerations[enumeration].join(", ")}`,
    received: String(received),
  });
}

function rejectDType({ dtype }: Tensor, expected: DType, where: string): never {
  throw new DTypeError({
    where,
    expected,
    received: dtype,
    remedy: `pass a ${expected} tensor; sums accumulate in float32, and are rounded once at the end`,
  });
}

/**
 * Creates the kernels of a native device. Each call writes its arguments into the argument buffer and submits one piece
 * of native work. Throws an OptionError for attention that needs a feature that the device lacks (`checkFeatures`), a
 * ShapeError for a tile whose shapes do not match (`checkTile`), and a DTypeError for a tensor of a dtype that the
 * schema does not allow.
 */
export function nativeKernels(device: FeatureDevice, host: KernelHost): Kernels {
  const methods = methodFactories.map(([name, createMethod]) => {
    const call = host.native[name];
    return [
      name,
      createMethod({ device, host, call, checkFeatures, checkTile, codes, rejectDType, rejectValue }),
    ] as const;
  });
  return Object.fromEntries(methods) as unknown as Kernels;
}
