import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { draw, file, lengths } from "../dispatch-picture.mjs";

const root = fileURLToPath(new URL("../..", import.meta.url));

test("the committed picture equals the one that the command draws, byte for byte", () => {
  expect(readFileSync(file, "utf8") === draw()).toBe(true);
});

test.each(["README.md", "packages/backend-flex/README.md"])("the picture shows the document lengths of %s", (path) => {
  const text = readFileSync(join(root, path), "utf8");
  const [, numbers] = /const lengths = \[([^\]]*9800[^\]]*)\]/.exec(text);
  const writtenLengths = numbers.split(",").map((each) => Number(each.replace("_", "")));
  expect(writtenLengths.filter((each) => each > 0)).toEqual(lengths);
  expect(lengths).toHaveLength(32);
  expect(text).toContain("docs/images/dispatch.svg");
});
