import { expect, test } from "vitest";
import { fromArray } from "../../src/creation.ts";
import { ShapeError } from "../../src/errors.ts";
import { concatenate, stack } from "../../src/ops/concatenate.ts";
import { ReferenceDevice } from "../reference/index.ts";

const device = new ReferenceDevice();
const a = fromArray(device, [1, 2, 3, 4, 5, 6], [2, 3]);
const b = fromArray(device, [10, 20, 30, 40, 50, 60], [3, 2]).transpose(0, 1);

test.each([
  [0, [2, 2, 3], [1, 2, 3, 4, 5, 6, 10, 30, 50, 20, 40, 60]],
  [1, [2, 2, 3], [1, 2, 3, 10, 30, 50, 4, 5, 6, 20, 40, 60]],
  [2, [2, 3, 2], [1, 10, 2, 30, 3, 50, 4, 20, 5, 40, 6, 60]],
  [-1, [2, 3, 2], [1, 10, 2, 30, 3, 50, 4, 20, 5, 40, 6, 60]],
  [-3, [2, 2, 3], [1, 2, 3, 4, 5, 6, 10, 30, 50, 20, 40, 60]],
])("stack along axis %i equals torch.stack", async (axis, shape, expected) => {
  const out = stack([a, b], axis);
  expect(out.shape).toEqual(shape);
  expect([...(await out.read())]).toEqual(expected);
});

test("concatenate rejects tensors of other lengths or another number of axes", () => {
  const x = fromArray(device, [1, 2, 3, 4, 5, 6], [1, 2, 3]);
  for (const other of [a, fromArray(device, [1], [1]), x.transpose(1, 2)]) {
    expect(() => concatenate([x, other], 2)).toThrow(ShapeError);
    expect(() => concatenate([x, other], 2)).toThrow(
      /concatenate: expected shapes that match \[1,2,3\] except along axis 2, received \[/,
    );
  }
});

test("stack rejects shapes that differ, an axis out of range, and no tensors", () => {
  expect(() => stack([a, a.transpose(0, 1)], 0)).toThrow(
    "stack: expected tensors of equal shapes, [2,3] as the first one, received [3,2]",
  );
  expect(() => stack([a, b], 3)).toThrow("stack: expected an axis from -3 to 2, received 3");
  expect(() => stack([], 0)).toThrow(ShapeError);
  expect(() => stack(a as never, 0)).toThrow("stack: expected an array of tensors, received");
  expect(() => stack([a, a.to("float16")], 0)).toThrow(/^stack: /);
});
