// Writes the C++ declarations of the kernel schema: packages/core/src/kernels/schema.ts → packages/runtime/include/mosaic.
//
//   node scripts/kernel-headers.mjs            writes them
//   node scripts/kernel-headers.mjs --check    fails if they do not match the schema
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { tsImport } from "tsx/esm/api";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const INCLUDE_DIRECTORY = "packages/runtime/include/mosaic";
const GENERATED_NOTE =
  "as packages/core/src/kernels/schema.ts states.\n// Written by scripts/kernel-headers.mjs: edit the schema.";

const SCALAR_TYPES = { boolean: "bool", float32: "float", float64: "double", int64: "int64_t", uint64: "uint64_t" };
const LIST_TYPES = {
  spans: "std::vector<Span>",
  slices: "std::vector<Slice>",
  slicesBySample: "std::vector<std::vector<Slice>>",
  strides: "Strides",
};

const capitalize = (name) => name[0].toUpperCase() + name.slice(1);

/** Returns the text of each header by file name, from `{ kernelSchema, kernelStructures, kernelEnumerations }`. */
export function formatKernelHeaders(schema) {
  return { "kernel_enums.h": formatEnumsHeader(schema), "kernel_arguments.h": formatArgumentsHeader(schema) };
}

function formatEnumsHeader({ kernelEnumerations }) {
  const enumDeclarations = Object.entries(kernelEnumerations).map(
    ([name, values]) => `enum class ${name} : int32_t { ${values.map(capitalize).join(", ")} };`,
  );
  return `// Enumerations among the arguments of kernels, ${GENERATED_NOTE}
#pragma once

#include <cstdint>

namespace mosaic {

${enumDeclarations.join("\n")}

}  // namespace mosaic
`;
}

function formatArgumentsHeader({ kernelSchema, kernelStructures }) {
  const kernels = Object.entries(kernelSchema).map(([name, fields]) => ({
    name,
    fields,
    type: `${capitalize(name)}Arguments`,
  }));
  const usedStructNames = kernels.flatMap(({ fields }) => collectStructures(fields, kernelStructures));
  const structDeclarations = [...new Set(usedStructNames)].map((name) => formatStruct(name, kernelStructures[name]));
  const typeByFields = new Map();
  const declarations = kernels.map(({ fields, type }) => {
    const sharedType = typeByFields.get(JSON.stringify(fields));
    typeByFields.set(JSON.stringify(fields), sharedType ?? type);
    return sharedType ? `using ${type} = ${sharedType};\n` : formatStruct(type, fields);
  });
  const rows = kernels.map(({ name, type }) => `  X(${name}, ${type})`);
  return `// The arguments of every kernel, in the order in which they come, ${GENERATED_NOTE}
//
// Behind an operand stand its shape (none: it broadcasts to the output), its dtype (none: any), and whether its
// elements are read, written (all of them, unread) or updated (read and written).
#pragma once

#include <optional>
#include <vector>

#include "mosaic/kernel_enums.h"
#include "mosaic/argument_reader.h"

namespace mosaic {

${[...structDeclarations, ...declarations].join("\n")}
}  // namespace mosaic

/// Every kernel: X(name, type of its arguments).
#define MOSAIC_KERNELS(X) \\
${rows.join(" \\\n")}
`;
}

/** Returns the structures in fields, including nested ones. Each comes after the structures that it contains. */
function collectStructures(fields, structures) {
  return fields.flatMap(({ struct }) => (struct ? [...collectStructures(structures[struct], structures), struct] : []));
}

function formatStruct(name, fields) {
  const members = fields.map((field) => `  ${formatDeclaration(field)}\n`);
  return `struct ${name} {
${members.join("")}  void read(ArgumentReader& args) { args(${fields.map((field) => field.name).join(", ")}); }
};
`;
}

function formatDeclaration(field) {
  const { name, names } = field;
  if (field.tensor) return `${tensorType(field)} ${name};  // ${describeUsage(field)}`;
  const note = names
    ? `  // ${Object.entries(names)
        .map(([kind, value]) => `${kind}: ${value}`)
        .join(", ")}`
    : "";
  if (field.struct && field.optional) return `std::optional<${field.struct}> ${name}{};`;
  if (field.struct) return `${field.struct} ${name};${field.access ? `  // only ${field.access}` : ""}`;
  if (field.enum && field.optional) return `std::optional<${field.enum}> ${name}{};`;
  return `${field.enum ?? SCALAR_TYPES[field.scalar] ?? LIST_TYPES[field.list]} ${name};${note}`;
}

/** Returns the C++ type of an operand. Operands of attention have three or four axes, others may have any number. */
function tensorType({ shape = "", optional }) {
  if (optional) return "OptionalView";
  return /^\[\w+(,\w+){2,3}\]$/.test(shape) ? "TensorView" : "View";
}

function describeUsage({ tensor, shape, dtype, updatedIf, optional }) {
  const description = [shape, dtype].filter(Boolean).join(" ");
  const access = { read: "read", write: "written", update: "updated" }[tensor];
  return [description, updatedIf ? `${access}, updated if ${updatedIf}` : access, optional && "may be absent"]
    .filter(Boolean)
    .join(", ");
}

/** Returns the headers below `root` that do not match the schema. */
export async function findStaleHeaders(root = ROOT) {
  const schema = await tsImport("../packages/core/src/kernels/schema.ts", import.meta.url);
  const headers = Object.entries(formatKernelHeaders(schema)).map(([name, text]) => ({
    path: `${INCLUDE_DIRECTORY}/${name}`,
    text,
  }));
  return headers.filter(({ path, text }) => readText(join(root, path)) !== text);
}

function readText(path) {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    if (error.code === "ENOENT") return undefined;
    throw error;
  }
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const staleHeaders = await findStaleHeaders();
  const isCheck = process.argv.includes("--check");
  for (const { path, text } of staleHeaders) {
    if (isCheck) console.error(`${path} does not match the kernel schema: run node scripts/kernel-headers.mjs`);
    else writeFileSync(join(ROOT, path), text);
  }
  if (isCheck && staleHeaders.length > 0) process.exit(1);
  console.log(`kernel headers: ${isCheck ? "up to date" : `${staleHeaders.length} written`}`);
}
