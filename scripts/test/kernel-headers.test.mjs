import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { tsImport } from "tsx/esm/api";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { formatKernelHeaders, findStaleHeaders } from "../kernel-headers.mjs";

const root = fileURLToPath(new URL("../..", import.meta.url));

const smallSchema = {
  kernelEnumerations: { Op: ["add", "halfUp"] },
  kernelStructures: {
    Outer: [
      { name: "inner", struct: "Inner", optional: true },
      { name: "rows", list: "spans" },
    ],
    Inner: [{ name: "a", scalar: "float32", names: { x: "low", y: "mean" } }],
    Unused: [{ name: "b", scalar: "int64" }],
  },
  kernelSchema: {
    join: [
      { name: "op", enum: "Op" },
      { name: "out", tensor: "write", updatedIf: "more", shape: "[..,E]" },
      { name: "q", tensor: "read", shape: "[B,H,Sq,D]", dtype: "float32" },
      { name: "weight", tensor: "update", shape: "[E]", optional: true },
      { name: "outer", struct: "Outer", access: "read" },
      { name: "more", scalar: "boolean" },
    ],
    turn: [{ name: "out", tensor: "write" }],
    flip: [{ name: "out", tensor: "write" }],
  },
};

test("the committed headers match the schema", async () => {
  expect(await findStaleHeaders()).toEqual([]);
});

test("a header that is missing or differs is stale", async () => {
  const emptyDirectory = mkdtempSync(join(tmpdir(), "mosaic-headers-"));
  const stale = await findStaleHeaders(emptyDirectory);
  rmSync(emptyDirectory, { recursive: true });
  expect(stale.map(({ path }) => path.split("/").at(-1))).toEqual(["kernel_enums.h", "kernel_arguments.h"]);
});

test("structures follow those that they contain, and kernels with equal arguments share an alias", () => {
  const text = formatKernelHeaders(smallSchema)["kernel_arguments.h"];
  expect(text).not.toContain("Unused");
  expect(text.slice(text.indexOf("struct Inner"), text.indexOf("}  // namespace"))).toBe(`struct Inner {
  float a;  // x: low, y: mean
  void read(ArgumentReader& args) { args(a); }
};

struct Outer {
  std::optional<Inner> inner{};
  std::vector<Span> rows;
  void read(ArgumentReader& args) { args(inner, rows); }
};

struct JoinArguments {
  Op op;
  View out;  // [..,E], written, updated if more
  TensorView q;  // [B,H,Sq,D] float32, read
  OptionalView weight;  // [E], updated, may be absent
  Outer outer;  // only read
  bool more;
  void read(ArgumentReader& args) { args(op, out, q, weight, outer, more); }
};

struct TurnArguments {
  View out;  // written
  void read(ArgumentReader& args) { args(out); }
};

using FlipArguments = TurnArguments;

`);
  expect(text).toContain("  X(join, JoinArguments) \\\n  X(turn, TurnArguments) \\\n  X(flip, FlipArguments)\n");
});

test("enumerators have the names and the order of the schema's values", () => {
  expect(formatKernelHeaders(smallSchema)["kernel_enums.h"]).toContain("enum class Op : int32_t { Add, HalfUp };");
});

describe("a device that lacks a kernel of the schema fails to compile", () => {
  const include = mkdtempSync(join(tmpdir(), "mosaic-headers-"));
  const napi = createRequire(import.meta.url)("node-api-headers").include_dir;
  const compiler = process.env.CXX ?? "c++";

  beforeAll(async () => {
    const schema = await tsImport("../../packages/core/src/kernels/schema.ts", import.meta.url);
    const kernelSchema = { ...schema.kernelSchema, frobnicate: [{ name: "out", tensor: "write" }] };
    mkdirSync(join(include, "mosaic"));
    for (const [name, text] of Object.entries(formatKernelHeaders({ ...schema, kernelSchema }))) {
      writeFileSync(join(include, "mosaic", name), text);
    }
  });
  afterAll(() => rmSync(include, { recursive: true }));

  const compileSource = (directory, source, firstIncludes) => {
    const paths = [...firstIncludes, join(root, directory, "native"), join(root, "packages/runtime/include"), napi];
    const flags = ["-std=c++20", "-fsyntax-only", "-w", ...paths.map((path) => `-I${path}`)];
    return spawnSync(compiler, [...flags, join(root, directory, "native", source)], { encoding: "utf8" });
  };

  test.each([
    ["packages/kernels-cpu", "kernels/kernels_scalar.cc"],
    ["packages/kernels-cuda", "binding/kernels.cc"],
  ])("%s", (directory, source) => {
    expect(compileSource(directory, source, [])).toMatchObject({ status: 0, stderr: "" });
    const { status, stderr } = compileSource(directory, source, [include]);
    expect(status).not.toBe(0);
    expect(stderr).toMatch(/error: .*frobnicate/);
  });
});
