import { describe, expect, test } from "vitest";
import { attention } from "../../src/attention/attention.ts";
import { fromArray } from "../../src/creation.ts";
import { ShapeError } from "../../src/errors.ts";
import { init } from "../../src/init.ts";
import { causal, documents } from "../../src/mask/index.ts";
import type { Mask, Slice } from "../../src/mask/slice.ts";
import { resolveSlices } from "../../src/mask/verify.ts";
import { layoutOf } from "../../src/placement/layout.ts";
import { ReferenceDevice } from "../reference/index.ts";

const whole: Slice = { q0: 0, q1: 4, k0: 0, k1: 4, type: "full" };
const mask = (...slices: Slice[]): Mask => ({ name: "mine", slices: () => slices });

describe("a mask that breaks its guarantees is rejected by attention, before anything is computed", () => {
  const cases: [what: string, mask: Mask, message: RegExp][] = [
    ["slices that overlap", mask(whole, { ...whole, q0: 3 }), /mask mine: .*overlapping slices queries \[0,4\)/],
    ["the same slice twice", mask(whole, whole), /overlapping slices/],
    [
      "slanted slices that overlap",
      mask({ ...whole, type: "causal" }, { ...whole, type: "inverseCausal" }),
      /overlapping slices/,
    ],
    ["NaN", mask({ ...whole, k1: Number.NaN }), /integers .* received queries \[0,4\) × keys \[0,NaN\) type "full"/],
    ["half a position", mask({ ...whole, q0: 0.5 }), /queries \[0.5,4\)/],
    ["a negative position", mask({ ...whole, k0: -1 }), /keys \[-1,4\)/],
    ["queries outside", mask({ ...whole, q1: 5 }), /within 4 queries and 4 keys, received queries \[0,5\)/],
    ["keys outside", mask({ ...whole, k1: 5 }), /within 4 queries and 4 keys/],
    ["a reversed range", mask({ ...whole, q0: 3, q1: 2 }), /q0 ≤ q1/],
    ["an unknown type", mask({ ...whole, type: "striped" as never }), /a type among full, causal, .* type "striped"/],
    ["a type by number", mask({ ...whole, type: 1 as never }), /type 1/],
    ["no list", { name: "mine", slices: () => undefined as never }, /a list of slices, received undefined/],
  ];
  test.each(cases)("%s", async (_, wrong, message) => {
    await using ctx = await init({ device: new ReferenceDevice(), rank: 0, worldSize: 1 });
    using x = fromArray(ctx, new Array<number>(16).fill(1), [1, 1, 4, 4]);
    const rows = layoutOf({ mesh: ctx.mesh.shape, axes: [], length: 4 });
    const call = () => attention(ctx, x, x, x, { queries: rows, keys: rows, mask: wrong });
    expect(call).toThrow(ShapeError);
    expect(call).toThrow(message);
    attention(ctx, x, x, x, { queries: rows, keys: rows, mask: mask(whole) }).dispose();
  });
});

test("a mask is verified once for each pair of lengths, and its list is the same every time", () => {
  let calls = 0;
  const counted: Mask = {
    name: "counted",
    slices(queries, keys) {
      calls++;
      return causal().slices(queries, keys);
    },
  };
  const first = resolveSlices(counted, 4, 4);
  expect(resolveSlices(counted, 4, 4)).toBe(first);
  resolveSlices(counted, 4, 5);
  expect(calls).toBe(2);
});

test("ten thousand documents are verified in a fraction of a call", () => {
  const lengths = new Array<number>(10_000).fill(13);
  const begin = performance.now();
  resolveSlices(documents(lengths), 130_000, 130_000);
  expect(performance.now() - begin).toBeLessThan(500);
});
