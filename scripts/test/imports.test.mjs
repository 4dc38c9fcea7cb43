import { describe, expect, test } from "vitest";
import { findCycles, parseImports } from "../imports.mjs";

describe("parseImports", () => {
  test.each([
    ['import { a } from "./a.ts";', ["./a.ts"]],
    ['import type { A } from "./a.ts";', ["./a.ts"]],
    ['import { type A, b as c } from "./a.ts";', ["./a.ts"]],
    ['import a, { b } from "./a.ts";', ["./a.ts"]],
    ['import a, * as b from "./a.ts";', ["./a.ts"]],
    ['import * as a from "./a.ts";', ["./a.ts"]],
    ['import "./a.ts";', ["./a.ts"]],
    ['export * from "./a.ts";', ["./a.ts"]],
    ['export * as a from "./a.ts";', ["./a.ts"]],
    ['export type { A } from "./a.ts";', ["./a.ts"]],
    ["import {\n  a, // why\n  b,\n} from './a.ts';", ["./a.ts"]],
    ['type A = import("./a.ts").A;', ["./a.ts"]],
    ['const a = await import("./a.ts");', ["./a.ts"]],
    ['const a = require("node:fs");', ["node:fs"]],
    ['import { x } from "./b.ts";\nimport { y } from "./a.ts";\nexport { z } from "./b.ts";', ["./b.ts", "./a.ts"]],
  ])("finds %j", (source, expected) => {
    expect(parseImports(source).map((one) => one.specifier)).toEqual(expected);
  });

  test.each([
    ['// import { a } from "./a.ts";'],
    ['/**\n * @example\n * import { a } from "./a.ts";\n */\nexport const x = 1;'],
    ['const fixture = `\nimport { a } from "./a.ts";\n`;'],
    ['export const message = "taken from \\"./a.ts\\"";'],
    ['export function f() { return { from: "./a.ts" }; }'],
    ['const url = "https://example.org"; // from "./a.ts"'],
  ])("finds nothing in %j", (source) => {
    expect(parseImports(source)).toEqual([]);
  });
});

describe("parseImports reports whether only types are imported", () => {
  test.each([
    ['import type { A } from "./a.ts";', true],
    ['export type * from "./a.ts";', true],
    ['import { type A, type B as C } from "./a.ts";', true],
    ['import {\n  type A,\n  type B,\n} from "./a.ts";', true],
    ['import { type A, b } from "./a.ts";', false],
    ['import { type } from "./a.ts";', false],
    ['import {} from "./a.ts";', false],
    ['import "./a.ts";', false],
    ['export * from "./a.ts";', false],
    ['import type { A } from "./a.ts";\nimport { b } from "./a.ts";', false],
  ])("%j: %s", (source, typeOnly) => {
    expect(parseImports(source)).toEqual([{ specifier: "./a.ts", typeOnly }]);
  });
});

describe("findCycles", () => {
  const createGraph = (edges) => new Map(Object.entries(edges));

  test("finds none in a diamond", () => {
    expect(findCycles(createGraph({ a: ["b", "c"], b: ["d"], c: ["d"], d: [] }))).toEqual([]);
  });

  test("finds a node that points to itself", () => {
    expect(findCycles(createGraph({ a: ["a"] }))).toEqual([["a", "a"]]);
  });

  test("finds a cycle of several nodes that a node outside of it leads to", () => {
    expect(findCycles(createGraph({ a: ["b"], b: ["c"], c: ["d"], d: ["b"] }))).toEqual([["b", "c", "d", "b"]]);
  });

  test("finds two separate cycles, and ignores edges out of the graph", () => {
    const cycles = findCycles(createGraph({ a: ["b"], b: ["a", "elsewhere"], c: ["d"], d: ["c"] }));
    expect(cycles).toEqual([
      ["a", "b", "a"],
      ["c", "d", "c"],
    ]);
  });
});
