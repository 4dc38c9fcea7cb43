import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { parseBlocks, parseCommentBlocks, generateTests, instrument } from "../doc-examples.mjs";
import { expectThrown, expectValue } from "../example-value.ts";
import { describePackage, createRepository } from "./fixture.mjs";

test("finds the TypeScript blocks of a Markdown text with their lines", () => {
  const text = "# Title\n```sh\nls\n```\n```ts\na;\nb;\n```\n```ts ranks=4\nc;\n```\n```tsx\n```";
  expect(parseBlocks(text)).toEqual([
    { info: "ts", line: 6, code: "a;\nb;" },
    { info: "ts ranks=4", line: 10, code: "c;" },
  ]);
});

test("finds the blocks of doc comments only, at the lines of the source", () => {
  const source =
    'const x = "```ts";\n/**\n * Doubles.\n * @example\n * ```ts\n * if (a) {\n *   b;\n * }\n * ```\n */\n// ```ts';
  expect(parseCommentBlocks(source)).toEqual([{ info: "ts", line: 6, code: "if (a) {\n  b;\n}" }]);
});

describe("instrument", () => {
  test.each([
    ["a + b; // => 3", '__value(a + b, "3");'],
    ["await x.read() // => [1]", '__value(await x.read(), "[1]");'],
    ["console.log(a); // => 1", '__value(a, "1");'],
    ["const a = f(); // => 1", 'const a = f(); __value(a, "1");'],
    ["await using a: A = f(); // => 1", 'await using a: A = f(); __value(a, "1");'],
    ["f(); // throws ShapeError: no", 'await __thrown(async () => (f()), "ShapeError: no");'],
    ["const a = 1;\nf({\n  a,\n});\n// => 1", 'const a = 1;\n__value(f({\n  a,\n}), "1");\n'],
    ["// a plain comment\na; // => 1", '// a plain comment\n__value(a, "1");'],
    ["a(); // no promise", "a(); // no promise"],
  ])("%j", (code, expected) => {
    expect(instrument(code)).toBe(expected);
    expect(expected.split("\n").length).toBe(code.split("\n").length);
  });

  test("rejects an expected value after a declaration that it cannot instrument", () => {
    expect(() => instrument("const { a } = f(); // => 1")).toThrow(/expected an expression or `const name = …` before/);
  });
});

describe("expectValue", () => {
  test.each([
    [3, "3"],
    [0.1 + 0.2, "0.3"],
    [Math.fround(0.1), "0.1"],
    [-Infinity, "-Infinity"],
    [Number.NaN, "NaN"],
    [[1, [2, 3]], "[1, [2, 3]]"],
    [new Float32Array([1, 2]), "[1, 2]"],
    [new Float32Array([1, 2]), "Float32Array [1, 2]"],
    [new Float32Array([1, 2]), "Float32Array(2) [ 1, 2 ]"],
    [[1, 2, 3], "[1, 2, …]"],
    ["ring", '"ring"'],
    ["rank 0 of 4", "rank 0 of 4"],
    [{ dp: 2, sp: [4] }, "({ dp: 2, sp: [4] })"],
    [{ dp: 2 }, "{ dp: 2 }"],
    [undefined, "undefined"],
    [7n, "7n"],
  ])("accepts %o as %s", (actual, expected) => {
    expect(expectValue(actual, expected)).toBe(actual);
  });

  test.each([
    [3, "4"],
    [0.300001, "0.3001"],
    [[1, 2], "[1, 2, 3]"],
    [[1, 2, 3], "[1, 2]"],
    [[1, 2, 3], "[1, 3, …]"],
    [{ a: 1 }, "({ a: 1, b: 2 })"],
    [{ a: 1, b: 2 }, "({ a: 1 })"],
    [1, "Infinity"],
    [null, "undefined"],
    ["ring", '"rings"'],
  ])("rejects %o as %s", (actual, expected) => {
    expect(() => expectValue(actual, expected)).toThrow(/expected .*, received/);
  });
});

describe("expectThrown", () => {
  const throwError = () => {
    throw new RangeError("axis 4 is out of range");
  };
  test("accepts the expected error", () => expectThrown(throwError, "RangeError: axis 4"));
  test("rejects another error", () =>
    expect(expectThrown(throwError, "TypeError")).rejects.toThrow(/received RangeError/));
  test("rejects code that does not throw", () =>
    expect(expectThrown(() => 1, "RangeError")).rejects.toThrow(/received no error/));
});

test("a generated example runs, and fails if its expected value is wrong", async () => {
  const comment = "/**\n * ```ts\n * const two: number = 1 + 1; // => 2\n * ```\n */\nexport const x = 1;";
  const root = createRepository({
    "tsconfig.base.json": { compilerOptions: { target: "es2022" } },
    "README.md": "# Hello\n\n```ts\n1 + 1; // => 3\n```\n",
    ...describePackage("core", {}, { "src/index.ts": comment }),
  });
  const out = join(root, "build/doc-examples");
  expect(generateTests(root, out)).toBe(2);
  await import(join(out, "test/core/packages.core.src.index.ts.3.ts"));
  await expect(import(join(out, "test/documents/README.md.4.ts"))).rejects.toThrow("expected 3, received 2");
});
