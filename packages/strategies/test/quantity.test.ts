import { expect, test } from "vitest";
import { UsageError } from "../src/cli/load.ts";
import { parseBytes, parseCount } from "../src/cli/quantity.ts";

test.each([
  ["1", 1],
  ["4096", 4096],
  ["1_000", 1000],
  ["2k", 2048],
  ["1.5M", 1_572_864],
  ["1G", 1_073_741_824],
])("the count %s is %d", (text, expected) => {
  expect(parseCount("tokens", text)).toBe(expected);
});

test.each(["", "0", "-1", "1.5", "0.3k", "1T", "k", "1 k", "1e3", "9007199254740992"])(
  "the count %j is rejected",
  (text) => {
    expect(() => parseCount("tokens", text)).toThrow(UsageError);
    expect(() => parseCount("tokens", text)).toThrow(
      `--tokens: expected an integer ≥ 1, such as 4096, 128k or 1M, received "${text}"`,
    );
  },
);

test("a count has a minimum", () => {
  expect([parseCount("shift", "0", 0), parseCount("shift", "3", 3)]).toEqual([0, 3]);
  expect(() => parseCount("shift", "2", 3)).toThrow("--shift: expected an integer ≥ 3");
});

test.each([
  ["100", 100],
  ["1B", 1],
  ["2kB", 2e3],
  ["1.5 MB", 1.5e6],
  ["80GB", 80e9],
  ["2TB", 2e12],
  ["1KiB", 2 ** 10],
  ["512MiB", 2 ** 29],
  ["0.5GiB", 2 ** 29],
  ["1TiB", 2 ** 40],
])("the amount of memory %s is %d bytes", (text, expected) => {
  expect(parseBytes("memory", text)).toBe(expected);
});

test.each(["", "0", "0GB", "-1GB", "80G", "80gb", "1KB", "1kiB", "1iB", "GB", "1  GB"])(
  "the amount of memory %j is rejected",
  (text) => {
    expect(() => parseBytes("memory", text)).toThrow(UsageError);
    expect(() => parseBytes("memory", text)).toThrow(
      `--memory: expected an amount of memory > 0, such as 80GB or 512MiB, received "${text}"`,
    );
  },
);
