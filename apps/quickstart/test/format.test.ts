import { expect, test } from "vitest";
import { formatBytes } from "../src/format.ts";

test("a number of bytes that is rounded to 1000 has the next unit", () => {
  const bytes = [0, 999, 999_499, 999_500, 999_999_999, 5e15];
  expect(bytes.map(formatBytes)).toEqual(["0 B", "999 B", "999 kB", "1 MB", "1 GB", "5000 TB"]);
});
