import { expect, test } from "vitest";
import {
  checkClose,
  checkEqual,
  checkMeasurements,
  checkThrows,
  computeErrorSum,
  measureMagnitude,
  mergeErrorSums,
  maxError,
  normals,
  roundTo,
} from "../src/index.ts";

test("roundTo rounds to the nearest value, with ties to even", () => {
  expect(roundTo(1 + 2 ** -8, "bfloat16")).toBe(1);
  expect(roundTo(1 + 3 * 2 ** -8, "bfloat16")).toBe(1 + 2 ** -6);
  expect(roundTo(1 + 2 ** -8 + 2 ** -20, "bfloat16")).toBe(1 + 2 ** -7);
  expect(roundTo(-Math.PI, "bfloat16")).toBe(-3.140625);
  expect(roundTo(1 + 2 ** -11, "float16")).toBe(1);
  expect(roundTo(1 + 3 * 2 ** -11, "float16")).toBe(1 + 2 ** -9);
  expect(roundTo(65504, "float16")).toBe(65504);
  expect(roundTo(65520, "float16")).toBe(Number.POSITIVE_INFINITY);
  expect(roundTo(2 ** -24, "float16")).toBe(2 ** -24);
  expect(roundTo(2 ** -25, "float16")).toBe(0);
  expect(roundTo(2 ** -14 - 2 ** -24, "float16")).toBe(2 ** -14 - 2 ** -24);
  expect(roundTo(Number.NaN, "bfloat16")).toBeNaN();
  for (const dtype of ["float32", "bfloat16", "float16"] as const) {
    for (const value of normals(1000, 1, dtype)) expect(roundTo(value, dtype)).toBe(value);
  }
});

test("comparisons treat NaN as an infinite error and equal infinities as equal", () => {
  expect(maxError([1, Number.NaN], [1, 1])).toBe(Number.POSITIVE_INFINITY);
  expect(maxError([Number.POSITIVE_INFINITY], [1])).toBe(Number.POSITIVE_INFINITY);
  expect(maxError([Number.NEGATIVE_INFINITY, 2], [Number.NEGATIVE_INFINITY, 1])).toBe(1);
  expect(() => checkClose([Number.NaN], [0], 1e9, "x")).toThrow("x: largest error");
  expect(() => checkEqual([0, 1], [0, 2], "x")).toThrow("x: element 1 is 1, expected 2");
  expect(() => checkEqual([0], [0, 2], "x")).toThrow("expected 2 numbers, received 1");
});

test("checkThrows requires an error with the expected name and message", async () => {
  const rejectWithTypeError = () => Promise.reject(new TypeError("no such thing"));
  await checkThrows(rejectWithTypeError, "TypeError", /such/);
  await expect(checkThrows(rejectWithTypeError, "RangeError", /such/)).rejects.toThrow("expected RangeError");
  await expect(checkThrows(rejectWithTypeError, "TypeError", /other/)).rejects.toThrow(
    "expected a message that matches",
  );
  await expect(checkThrows(() => 1, "TypeError", /such/)).rejects.toThrow("expected TypeError, received no error");
});

test("checkMeasurements compares the error over all ranks with twice the error of one device", () => {
  const expected = Float64Array.of(1, 2, 3, 4);
  const localError = computeErrorSum([1, 2, 3, 4 + 2 ** -20], expected);
  const createMeasurement = (actual: number[], expectedShard: Float64Array) => ({
    trial: "t",
    results: {
      out: { measuredError: computeErrorSum(actual, expectedShard), localError, expected: measureMagnitude(expected) },
    },
    lse: 0,
  });
  const halves = [expected.subarray(0, 2), expected.subarray(2)] as const;
  const goodMeasurement = createMeasurement([1, 2], halves[0]);
  checkMeasurements("ring", [goodMeasurement, createMeasurement([3 + 2 ** -20, 4], halves[1])]);
  const badMeasurement = createMeasurement([3 + 2 ** -18, 4], halves[1]);
  expect(() => checkMeasurements("ring", [goodMeasurement, badMeasurement])).toThrow(
    /ring, t: out: root mean square error .* exceeds/,
  );
  const poisonedMeasurement = JSON.parse(
    JSON.stringify(createMeasurement([3, Number.NaN], halves[1])),
  ) as typeof goodMeasurement;
  expect(() => checkMeasurements("ring", [goodMeasurement, poisonedMeasurement])).toThrow(/exceeds/);
  expect(() => checkMeasurements("ring", [goodMeasurement, { ...goodMeasurement, trial: "other" }])).toThrow(
    "expected the same trial on all ranks, received t and other",
  );
  expect(() => checkMeasurements("ring", [goodMeasurement, { ...goodMeasurement, commonDigest: "x" }])).toThrow(
    "expected the parameter gradients of rank 0 (digest undefined) on rank 1, received digest x",
  );
  expect(mergeErrorSums([computeErrorSum([1], [0]), computeErrorSum([3, 0], [0, 0])])).toEqual({
    count: 3,
    sumOfSquares: 10,
    maxError: 3,
  });
});
