import { describe, expect, test } from "vitest";
import { attention } from "../../src/attention/attention.ts";
import { fromArray } from "../../src/creation.ts";
import { ShapeError } from "../../src/errors.ts";
import { init } from "../../src/init.ts";
import { causal, documents } from "../../src/mask/index.ts";
import { checkSlices, type Mask, type Slice } from "../../src/mask/slice.ts";
import { resolveSlices } from "../../src/mask/verify.ts";
import { layoutOf } from "../../src/placement/layout.ts";
import { ReferenceDevice } from "../reference/index.ts";
import { measureProcessorTime } from "../processor-time.ts";

const fullSlice: Slice = { q0: 0, q1: 4, k0: 0, k1: 4, type: "full" };
const mask = (...slices: Slice[]): Mask => ({ name: "mine", slices: () => slices });

describe("attention with an invalid custom mask", () => {
  const cases: [fault: string, mask: Mask, message: RegExp][] = [
    [
      "slices that overlap",
      mask(fullSlice, { ...fullSlice, q0: 3 }),
      /mask mine: .*overlapping slices queries \[0,4\)/,
    ],
    ["a slice that occurs twice", mask(fullSlice, fullSlice), /overlapping slices/],
    [
      "slanted slices that overlap",
      mask({ ...fullSlice, type: "causal" }, { ...fullSlice, type: "inverseCausal" }),
      /overlapping slices/,
    ],
    [
      "a bound that is NaN",
      mask({ ...fullSlice, k1: Number.NaN }),
      /integers .* received queries \[0,4\) × keys \[0,NaN\) type "full"/,
    ],
    ["a bound that is not an integer", mask({ ...fullSlice, q0: 0.5 }), /queries \[0.5,4\)/],
    ["a negative bound", mask({ ...fullSlice, k0: -1 }), /keys \[-1,4\)/],
    [
      "queries beyond the sequence",
      mask({ ...fullSlice, q1: 5 }),
      /within 4 queries and 4 keys, received queries \[0,5\)/,
    ],
    ["keys beyond the sequence", mask({ ...fullSlice, k1: 5 }), /within 4 queries and 4 keys/],
    ["a reversed range", mask({ ...fullSlice, q0: 3, q1: 2 }), /q0 ≤ q1/],
    [
      "an unknown type",
      mask({ ...fullSlice, type: "striped" as never }),
      /a type among full, causal, .* type "striped"/,
    ],
    ["the code of a type", mask({ ...fullSlice, type: 1 as never }), /type 1/],
    [
      "a mask without slices",
      { name: "mine", slices: () => undefined as never },
      /an array of slices, received undefined/,
    ],
  ];
  test.each(cases)("rejects %s", async (_, invalidMask, message) => {
    await using ctx = await init({ device: new ReferenceDevice(), rank: 0, worldSize: 1 });
    using x = fromArray(ctx, new Array<number>(16).fill(1), [1, 1, 4, 4]);
    const rows = layoutOf({ mesh: ctx.mesh.shape, axes: [], length: 4 });
    const call = () => attention(ctx, x, x, x, { queries: rows, keys: rows, mask: invalidMask });
    expect(call).toThrow(ShapeError);
    expect(call).toThrow(message);
    attention(ctx, x, x, x, { queries: rows, keys: rows, mask: mask(fullSlice) }).dispose();
  });
});

test("checkSlices checks the list and each of its slices", () => {
  checkSlices("test", []);
  checkSlices("test", [fullSlice, fullSlice]);
  for (const list of [undefined, null, "causal", { length: 0 }])
    expect(() => checkSlices("test", list)).toThrow(/^test: expected an array of slices, received/);
  const invalidSlice = { ...fullSlice, k1: 0.5 };
  for (const list of [[invalidSlice], [invalidSlice, fullSlice], [fullSlice, invalidSlice]])
    expect(() => checkSlices("test", list)).toThrow(/^test: expected a slice \{ q0, q1, k0, k1, type \} with integer/);
});

test("a mask is resolved once per pair of lengths, and the list is cached", () => {
  let calls = 0;
  const countingMask: Mask = {
    name: "counted",
    slices(queries, keys) {
      calls++;
      return causal().slices(queries, keys);
    },
  };
  const firstSlices = resolveSlices(countingMask, 4, 4);
  expect(resolveSlices(countingMask, 4, 4)).toBe(firstSlices);
  resolveSlices(countingMask, 4, 5);
  expect(calls).toBe(2);
});

test("ten thousand documents are verified in less than half a second of processor time", () => {
  const lengths = new Array<number>(10_000).fill(13);
  expect(measureProcessorTime(() => resolveSlices(documents(lengths), 130_000, 130_000))).toBeLessThan(500);
});
