import { expect, test } from "vitest";
import { tickStep } from "../../src/draw/axis.ts";
import { formatBytes, formatSeconds } from "../../src/index.ts";

test("bytes and times have three digits, and a value that is rounded to 1000 has the next unit", () => {
  const bytes = [0, 0.5, 999, 999.6, 1000, 999_499, 999_500, 999_999_999, 1e15, 5e18];
  const byteTexts = ["0 B", "0.5 B", "999 B", "1 kB", "1 kB", "999 kB", "1 MB", "1 GB", "1 PB", "5000 PB"];
  expect(bytes.map(formatBytes)).toEqual(byteTexts);
  const times = [0, 1e-9, 0.9994e-3, 0.9996e-3, 0.999_49, 0.9996, 12.345];
  expect(times.map(formatSeconds)).toEqual(["0 s", "0.001 µs", "999 µs", "1 ms", "999 ms", "1 s", "12.3 s"]);
});

test("steps of an axis are 1, 2 or 5 times a power of ten, not below the minimum", () => {
  const minima = [0.001, 0.0011, 1, 1.5, 2, 2.5, 5, 5.1, 10, 4001];
  expect(minima.map(tickStep)).toEqual([0.001, 0.002, 1, 2, 2, 5, 5, 10, 10, 5000]);
});
