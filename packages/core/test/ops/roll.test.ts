import { expect, test } from "vitest";
import { fromArray } from "../../src/creation.ts";
import { roll } from "../../src/ops/concatenate.ts";
import { ReferenceDevice } from "../reference/index.ts";

const device = new ReferenceDevice();
const x = fromArray(device, [1, 2, 3, 4, 5, 6], [2, 3]);

test.each([
  [-1, 1, [2, 3, 1, 5, 6, 4]],
  [1, 1, [3, 1, 2, 6, 4, 5]],
  [1, 0, [4, 5, 6, 1, 2, 3]],
  [0, 1, [1, 2, 3, 4, 5, 6]],
  [-7, -1, [2, 3, 1, 5, 6, 4]],
  [6, 1, [1, 2, 3, 4, 5, 6]],
])("roll by %i along axis %i equals torch.roll", async (shift, axis, expected) => {
  expect([...(await roll(x, shift, axis).read())]).toEqual(expected);
});

test("roll keeps the shape of a tensor without elements", () => {
  expect(roll(fromArray(device, [], [2, 0]), -1, 1).shape).toEqual([2, 0]);
});

test("roll rejects invalid axes and shifts that are not integers", () => {
  expect(() => roll(x, 1, 2)).toThrow("roll: expected an axis from -2 to 1, received 2");
  expect(() => roll(x, 0.5, 0)).toThrow(/roll: shift: expected an integer, received 0.5/);
  expect(() => roll(x, undefined as never, 0)).toThrow(/roll: shift: expected an integer/);
});
