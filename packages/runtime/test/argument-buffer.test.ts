import { type Device, type Slice, type Span, Tensor } from "@mosaic/core";
import { expect, test } from "vitest";
import { ArgumentBuffer, NativeStorage } from "../src/index.ts";

const owner = { reclaim() {} };
const slice: Slice = { q0: 5, q1: 6, k0: 7, k1: 8, type: "bidirectionalCausal" };
const span: Span = { start: 2, length: 3, step: 4 };
const shape = Array.from({ length: 12 }, (_, axis) => axis + 1);
const storage = new NativeStorage(owner, { address: 64, id: 0, byteLength: 256 }, 256);
const tensor = new Tensor({
  ...{ device: { type: "fake", index: 0 } as Device, dtype: "float32", storage },
  ...{ shape, strides: shape.map((length) => 100 + length), offset: 3 },
});

const repeat = <T>(count: number, items: readonly T[]): T[] => Array.from({ length: count }, () => items).flat();

/** Arguments, with the doubles by which they are passed. */
const writes: readonly [name: string, write: (args: ArgumentBuffer) => void, doubles: readonly number[]][] = [
  ["a view", (args) => args.view(tensor), [64 + 12, 0, 12, ...tensor.shape, ...tensor.strides]],
  ["spans", (args) => args.spans([span, span, span, span, span, span]), [6, ...repeat(6, [2, 3, 4])]],
  ["slices", (args) => args.slices([slice, slice, slice, slice]), [4, ...repeat(4, [5, 6, 7, 8, 3])]],
  [
    "slices by sample",
    (args) => args.slicesBySample([[slice], [], [slice, slice, slice]]),
    [3, 1, 5, 6, 7, 8, 3, 0, 3, ...repeat(3, [5, 6, 7, 8, 3])],
  ],
  ["strides", (args) => args.strides(shape), [12, ...shape]],
];

test.each(writes)(
  "%s and 16 scalars are passed whole at every distance from the end of the buffer",
  (_, write, doubles) => {
    for (let numDoubles = 900; numDoubles < 1010; numDoubles++) {
      const boundBuffers: Float64Array[] = [];
      const args = new ArgumentBuffer({ bind: (values) => boundBuffers.push(values) });
      args.begin(owner, 4096, "test");
      const numSpans = Math.floor(numDoubles / 3);
      args.spans(repeat(numSpans, [span]));
      const remainder = repeat(numDoubles % 3, [9]);
      for (const number of remainder) args.number(number);
      write(args);
      const scalars = Array.from({ length: 16 }, (__, i) => i);
      for (const scalar of scalars) args.number(scalar);
      const preceding = [4096, numSpans, ...repeat(numSpans, [2, 3, 4]), ...remainder];
      const expected = [...preceding, ...doubles, ...scalars];
      expect(Array.from(args.values.subarray(0, expected.length))).toEqual(expected);
      // Native code reads the buffer that was bound last. The constructor's buffer is bound by the addon's loader.
      if (boundBuffers.length > 0) expect(boundBuffers.at(-1)).toBe(args.values);
      expect(boundBuffers.length > 0).toBe(args.values.length > 1024);
    }
  },
);
