import { expect, test } from "vitest";
import { checkStructure } from "../check-structure.mjs";
import { createRepository } from "./fixture.mjs";

const lines = (n) => "x\n".repeat(n);

test("reports the median and no fault for small files", () => {
  const root = createRepository({
    "packages/a/src/a.ts": lines(10),
    "packages/a/src/b.ts": lines(30),
    "apps/b/c.cc": lines(20),
  });
  expect(checkStructure(root)).toEqual({ faults: [], files: 3, median: 20 });
});

test("accepts files of 500 lines and rejects files of 501, including native code", () => {
  const root = createRepository({
    "packages/a/native/a.cc": lines(500),
    "packages/a/src/b.ts": lines(1),
    "scripts/c.mjs": "",
  });
  expect(checkStructure(root).faults).toEqual([]);
  const longer = createRepository({
    "packages/a/native/a.cc": lines(501),
    "packages/a/src/b.ts": "",
    "scripts/c.mjs": "",
  });
  expect(checkStructure(longer).faults).toEqual([expect.stringMatching(/a\.cc has 501 lines/)]);
});

test("accepts native lines of 120 columns and rejects longer ones", () => {
  const root = createRepository({ "packages/a/native/a.cc": `${"×".repeat(120)}\n\n${"x".repeat(121)}\n` });
  expect(checkStructure(root).faults).toEqual(["packages/a/native/a.cc:3 has 121 columns, the limit is 120"]);
});

test("rejects a median of more than 200 lines", () => {
  expect(checkStructure(createRepository({ "packages/a/a.ts": lines(201) })).faults).toEqual([
    expect.stringMatching(/median/),
  ]);
});

test.each(["src/utils.ts", "src/common/a.ts", "native/misc.h", "src/util.test.ts"])("rejects the name %s", (path) => {
  expect(checkStructure(createRepository({ [`packages/a/${path}`]: "" })).faults).toEqual([
    expect.stringMatching(/is not descriptive/),
  ]);
});

test("ignores build outputs and installed modules", () => {
  const root = createRepository({ "packages/a/dist/utils.js": lines(999), "packages/a/node_modules/x/common.js": "" });
  expect(checkStructure(root)).toEqual({ faults: [], files: 0, median: 0 });
});
