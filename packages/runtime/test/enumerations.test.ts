import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { collectiveOps, dtypeCodes, reduceOps } from "@mosaic/core";
import { expect, test } from "vitest";

const root = fileURLToPath(new URL("..", import.meta.url));

/** Returns the enumerators of `enum class name` in a header, in lower case. */
function parseEnumerators(header: string, name: string): readonly string[] {
  const text = readFileSync(`${root}/${header}`, "utf8");
  const [, list = ""] = new RegExp(`enum class ${name} : \\w+ \\{([^}]*)\\}`).exec(text) ?? [];
  return list.split(",").map((each) => each.trim().toLowerCase());
}

test.each([
  ["include/mosaic/view.h", "DType", Object.keys(dtypeCodes).toSorted((a, b) => encodeDType(a) - encodeDType(b))],
  ["include/mosaic/reduction.h", "ReduceOp", reduceOps],
  // A split is not among the collectives of the contract; ProcessGroup.split posts it.
  ["native/collectives/call.h", "OpKind", [...collectiveOps, "split"]],
])("%s: %s has the values of @mosaic/core in the same order", (header, name, expected) => {
  expect(parseEnumerators(header, name)).toEqual(expected.map((each) => each.toLowerCase()));
});

function encodeDType(dtype: string): number {
  return dtypeCodes[dtype as keyof typeof dtypeCodes];
}
