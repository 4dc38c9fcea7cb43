import { inspect } from "node:util";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { empty, fromArray, full, ones, zeros } from "../src/creation.ts";
import { rand, randn } from "../src/random.ts";
import { DisposedError, DTypeError, ShapeError } from "../src/errors.ts";
import { contiguousStrides, type Shape, numel } from "../src/shape.ts";
import type { Tensor } from "../src/tensor.ts";
import { ReferenceDevice } from "./reference/index.ts";

const device = new ReferenceDevice();
const createIndexTensor = (shape: Shape) =>
  fromArray(
    device,
    Array.from({ length: numel(shape) }, (_, i) => i),
    shape,
  );

const anyShape = fc.array(fc.integer({ min: 0, max: 4 }), { maxLength: 4 });

/** Returns the expected values of a view by its definition: out[index] = x[mapIndex(index)]. */
function selectElements(inputShape: Shape, outputShape: Shape, mapIndex: (index: number[]) => number[]): number[] {
  const strides = contiguousStrides(inputShape);
  const steps = contiguousStrides(outputShape);
  return Array.from({ length: numel(outputShape) }, (_, flatIndex) => {
    const index = outputShape.map((length, axis) => Math.floor(flatIndex / steps[axis]!) % length);
    return mapIndex(index).reduce((elementOffset, i, axis) => elementOffset + i * strides[axis]!, 0);
  });
}

test("strides of axes of length 1, and of empty tensors, do not matter for contiguity", async () => {
  const x = createIndexTensor([2, 3, 1]);
  const permuted = x.permute([0, 2, 1]);
  expect(permuted.isContiguous).toBe(true);
  const rows = permuted.reshape([6]);
  expect(rows.storage).toBe(x.storage);
  expect([...(await rows.read())]).toEqual([0, 1, 2, 3, 4, 5]);
  expect(createIndexTensor([2, 0, 3]).transpose(0, 2).isContiguous).toBe(true);
  expect(createIndexTensor([2, 3]).transpose(0, 1).isContiguous).toBe(false);
});

describe("view operations", () => {
  test("permute reorders the axes", () =>
    fc.assert(
      fc.asyncProperty(anyShape, fc.infiniteStream(fc.nat(1000)), async (shape, stream) => {
        const keys = shape.map(() => stream.next().value);
        const axes = shape.map((_, axis) => axis).toSorted((a, b) => keys[a]! - keys[b]! || a - b);
        const view = createIndexTensor(shape).permute(axes);
        const inverse = axes.map((_, axis) => axes.indexOf(axis));
        expect([...(await view.read())]).toEqual(
          selectElements(shape, view.shape, (index) => inverse.map((i) => index[i]!)),
        );
      }),
    ));

  test("slice supports steps and negative ends", () =>
    fc.assert(
      fc.asyncProperty(
        fc.nat(7),
        fc.integer({ min: -9, max: 9 }),
        fc.integer({ min: -9, max: 9 }),
        fc.integer({ min: 1, max: 4 }),
        async (length, start, end, step) => {
          const view = createIndexTensor([2, length]).slice(1, start, end, step);
          const row = Array.from({ length }, (_, i) => i)
            .slice(start, end)
            .filter((_, i) => i % step === 0);
          expect(view.shape).toEqual([2, row.length]);
          expect([...(await view.read())]).toEqual([...row, ...row.map((i) => i + length)]);
        },
      ),
    ));

  test("reshape supports any strides, as a view or a copy", () =>
    fc.assert(
      fc.asyncProperty(fc.nat(3), fc.nat(3), fc.nat(3), fc.boolean(), async (a, b, c, isTransposed) => {
        const x = createIndexTensor([a, b, c]);
        const transposedInput = isTransposed ? x.transpose(0, 2) : x.transpose(1, 0);
        const values = [...(await transposedInput.read())];
        for (const shape of [[a * b * c], [a, b * c], [c * a, b], [1, b, 1, c * a, 1]]) {
          const view = transposedInput.reshape(shape);
          expect(view.shape).toEqual(shape);
          expect([...(await view.read())]).toEqual(values);
        }
      }),
    ));

  test("reshape infers a length of -1, and accepts a shape without axes", () => {
    expect(createIndexTensor([2, 6]).reshape([3, -1]).shape).toEqual([3, 4]);
    expect(createIndexTensor([1]).reshape([]).shape).toEqual([]);
  });

  test("squeeze and unsqueeze remove and insert axes of length 1, of any view", async () => {
    const x = createIndexTensor([1, 3, 1, 2]);
    expect(x.squeeze().shape).toEqual([3, 2]);
    expect(x.squeeze(-2).shape).toEqual([1, 3, 2]);
    expect(x.squeeze([0, 2]).shape).toEqual([3, 2]);
    expect(x.squeeze(1).shape).toEqual([1, 3, 1, 2]); // as torch.squeeze
    expect(createIndexTensor([]).squeeze().shape).toEqual([]);
    expect([0, 1, 2, -1].map((axis) => createIndexTensor([3, 2]).unsqueeze(axis).shape)).toEqual([
      [1, 3, 2],
      [3, 1, 2],
      [3, 2, 1],
      [3, 2, 1],
    ]);
    expect(createIndexTensor([]).unsqueeze(0).shape).toEqual([1]);
    const transposed = createIndexTensor([2, 3]).transpose(0, 1);
    for (const axis of [0, 1, 2]) {
      const view = transposed.unsqueeze(axis);
      expect([...(await view.read())]).toEqual([0, 3, 1, 4, 2, 5]);
      expect([...(await view.squeeze(axis).read())]).toEqual([0, 3, 1, 4, 2, 5]);
    }
    expect(createIndexTensor([2, 3]).unsqueeze(1).isContiguous).toBe(true);
  });

  test("select removes the axis", async () => {
    const x = createIndexTensor([2, 3]);
    expect([...(await x.select(0, 1).read())]).toEqual([3, 4, 5]);
    expect([...(await x.select(-1, -3).read())]).toEqual([0, 3]);
    expect(x.select(1, 2).select(0, 0).shape).toEqual([]);
    expect(await x.select(1, 2).select(0, 0).item()).toBe(2);
    // Other axes of length 1 remain.
    expect(createIndexTensor([1, 3, 1]).select(1, 0).shape).toEqual([1, 1]);
  });

  test("split returns consecutive parts along an axis", async () => {
    const parts = createIndexTensor([2, 5]).split(2, 1);
    expect(await Promise.all(parts.map(async (part) => [...(await part.read())]))).toEqual([
      [0, 1, 5, 6],
      [2, 3, 7, 8],
      [4, 9],
    ]);
    const x = createIndexTensor([4, 2]);
    expect(x.split([1, 0, 3], -2).map(({ shape }) => shape)).toEqual([
      [1, 2],
      [0, 2],
      [3, 2],
    ]);
    expect(x.split(9, 0).map(({ shape }) => shape)).toEqual([[4, 2]]);
    expect(
      createIndexTensor([0, 2])
        .split(3, 0)
        .map(({ shape }) => shape),
    ).toEqual([[0, 2]]);
  });

  test("expand repeats axes of length 1", async () => {
    const view = createIndexTensor([2, 1]).expand([2, 2, 3]);
    expect([...(await view.read())]).toEqual([0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1]);
  });

  test("to rounds to the nearest value, with ties to even", async () => {
    const x = fromArray(device, [1 + 2 ** -8, 1 + 3 * 2 ** -8, 1 + 2 ** -11], [3]);
    expect([...(await x.to("bfloat16").read())]).toEqual([1, 1 + 2 ** -6, 1]);
    expect([...(await x.to("float16").read())]).toEqual([1 + 2 ** -8, 1 + 3 * 2 ** -8, 1]);
  });
});

describe("memory of views", () => {
  const sharesStorage = (view: Tensor, x: Tensor) => view.storage === x.storage;

  test("reshape, permute, slice, expand and conversions without effect do not copy", () => {
    const x = createIndexTensor([2, 3, 4]);
    const views = [x.reshape([6, 4]), x.permute([2, 0, 1]), x.slice(1, 1), x.expand([5, 2, 3, 4]), x.contiguous()];
    views.push(x.select(1, 1), ...x.split(2, 2), x.unsqueeze(1), x.unsqueeze(1).squeeze());
    expect(views.every((view) => sharesStorage(view, x))).toBe(true);
    expect(sharesStorage(x.to("float32"), x)).toBe(true);
    expect(sharesStorage(x.detach(), x)).toBe(true);
  });

  test("splitting and merging heads does not copy", () => {
    const memory = createIndexTensor([2, 5, 3, 4]);
    const heads = memory.permute([0, 2, 1, 3]);
    const mergedHeads = heads.permute([0, 2, 1, 3]).reshape([2, 5, 12]);
    expect(sharesStorage(mergedHeads, memory)).toBe(true);
  });

  test("memory is freed when the last view is disposed", () => {
    const ownDevice = new ReferenceDevice();
    const x = zeros(ownDevice, [4, 4]);
    const view = x.slice(0, 1, 2);
    x.dispose();
    expect(ownDevice.memory().allocated).toBe(64);
    view.dispose();
    view.dispose();
    expect(ownDevice.memory().allocated).toBe(0);
  });
});

test("invalid arguments of view operations are rejected with the expected values", () => {
  const x = createIndexTensor([2, 3]);
  expect(() => x.reshape([4, 2])).toThrow(/reshape: expected a shape with 6 elements, as in \[2,3\], received \[4,2\]/);
  expect(() => x.reshape([-1, -1])).toThrow(ShapeError);
  expect(() => x.reshape([4, -1])).toThrow(ShapeError);
  expect(() => x.permute([0, 0])).toThrow(/a permutation of the 2 axes/);
  expect(() => x.transpose(0, 2)).toThrow(/an axis from -2 to 1, received 2/);
  expect(() => x.slice(0, 0, 1, 0)).toThrow(/integers start, end and step with step ≥ 1/);
  expect(() => x.squeeze(2)).toThrow("squeeze: expected an axis from -2 to 1, received 2");
  expect(() => x.squeeze([0, -2])).toThrow("squeeze: expected distinct axes, received [0,-2] of 2 axes");
  expect(() => x.unsqueeze(3)).toThrow("unsqueeze: expected an axis from -3 to 2, received 3");
  expect(() => x.unsqueeze(undefined as never)).toThrow(ShapeError);
  expect(() => x.select(2, 0)).toThrow("select: expected an axis from -2 to 1, received 2");
  expect(() => x.select(1, 3)).toThrow("select: expected an index from -3 to 2, received 3");
  expect(() => x.select(1, -4)).toThrow(ShapeError);
  expect(() => x.select(1, 0.5)).toThrow(ShapeError);
  expect(() => createIndexTensor([0]).select(0, 0)).toThrow(
    "select: expected an axis with at least one element, received [0]",
  );
  expect(() => x.split(0, 0)).toThrow("split: expected a size that is an integer ≥ 1, received 0");
  expect(() => x.split([1, 1], 1)).toThrow(
    "split: expected at least one size, with the sum 3, the length of the axis, received [1,1]",
  );
  expect(() => x.split([4, -1], 1)).toThrow(/^split: expected a size, or an array of sizes that are integers ≥ 0/);
  expect(() => x.split("2" as never, 1)).toThrow(ShapeError);
  expect(() => x.split(1, undefined as never)).toThrow("split: expected an axis from -2 to 1, received undefined");
  expect(() => x.expand([4, 3])).toThrow(/only axes of length 1/);
  expect(() => createIndexTensor([1, 3]).expand([-1, 3])).toThrow(ShapeError);
  expect(() => createIndexTensor([1, 3]).expand([2.5, 3])).toThrow(ShapeError);
  expect(() => x.to("int8" as "float32")).toThrow(DTypeError);
});

test("view rejects shapes and strides outside the tensor's elements", () => {
  const x = createIndexTensor([2, 3]);
  expect(() => x.view({ shape: [7], strides: [1] })).toThrow(
    "view: expected a view within the 6 elements of the tensor's storage, received [7] with strides [1] from element 0",
  );
  expect(() => x.view({ offset: 1 })).toThrow(ShapeError);
  expect(() => x.view({ shape: [3], strides: [-1], offset: 1 })).toThrow(ShapeError);
  expect(() => x.view({ shape: [2] })).toThrow(ShapeError);
  expect(() => x.view({ shape: [-1, 1] })).toThrow(ShapeError);
  expect(() => x.view({ strides: [1.5, 1] })).toThrow(ShapeError);
  expect(x.view({ shape: [9, 6], strides: [0, 1] }).size).toBe(54);
  expect(x.view({ shape: [0, 6], strides: [100, 1], offset: 6 }).size).toBe(0);
});

test("reshape and read reject a disposed tensor", () => {
  const x = createIndexTensor([2]);
  x.dispose();
  expect(() => x.reshape([2])).toThrow(DisposedError);
  expect(() => x.read()).toThrow(
    /read: expected a tensor that is not disposed, received a disposed tensor of shape \[2\]/,
  );
});

describe("creation", () => {
  test("fills tensors with a value", async () => {
    expect([...(await full(device, [2], 3).read())]).toEqual([3, 3]);
    expect([...(await ones(device, [1]).read())]).toEqual([1]);
    expect([...(await zeros(device, [1], { dtype: "float16" }).read())]).toEqual([0]);
  });

  test("draws the same numbers for the same seed and stream, and different numbers otherwise", async () => {
    const drawNormal = async (seed: number, stream: number) =>
      String(await randn(device, [8], { seed, stream }).read());
    expect(await drawNormal(1, 2)).toBe(await drawNormal(1, 2));
    expect(await drawNormal(1, 2)).not.toBe(await drawNormal(1, 3));
    expect(await drawNormal(1, 2)).not.toBe(await drawNormal(2, 2));
    expect(String(await rand(device, [8]).read())).not.toBe(String(await rand(device, [8]).read()));
  });

  test("draws from the requested distribution", async () => {
    const normalValues = await randn(device, [4000], { mean: 2, std: 3 }).read();
    const mean = normalValues.reduce((a, b) => a + b) / 4000;
    expect(mean).toBeCloseTo(2, 0);
    expect(Math.sqrt(normalValues.reduce((sum, x) => sum + (x - mean) ** 2, 0) / 4000)).toBeCloseTo(3, 0);
    const uniformValues = await rand(device, [4000], { low: -1, high: 0.5 }).read();
    expect(Math.min(...uniformValues)).toBeGreaterThanOrEqual(-1);
    expect(Math.max(...uniformValues)).toBeLessThan(0.5);
  });

  test("rejects invalid shapes and dtypes", () => {
    expect(() => fromArray(device, [1, 2, 3], [2, 2])).toThrow(
      /a shape with 3 elements, one per value, received \[2,2\] \(4 elements\)/,
    );
    const rows = [
      [1, 2],
      [3, 4],
    ] as unknown as number[];
    expect(() => fromArray(device, rows, [2, 2])).toThrow(
      /^fromArray: values\[0\]: expected a number, received \[1,2\]; pass the flat values of all rows, such as values\.flat/,
    );
    expect(() => empty(device, [2]).view(2 as never)).toThrow(/use reshape\(\[…\]\)/);
    expect(() => empty(device, [-1])).toThrow(ShapeError);
    expect(() => empty(device, [1.5])).toThrow(ShapeError);
    expect(() => zeros(device, [1], { dtype: "float8" as "float32" })).toThrow(
      /zeros: dtype: expected "float32", "bfloat16" or "float16", received "float8"/,
    );
  });

  test("inspect formats a tensor without its values", () => {
    const x = ones(device, [2, 3]);
    expect(inspect(x)).toBe("Tensor [2,3] float32 on reference:0");
    x.dispose();
    expect(inspect(x)).toBe("Tensor [2,3] float32 on reference:0, disposed");
  });

  test("item reads one element", async () => {
    expect(await full(device, [1, 1], 4).item()).toBe(4);
    await expect(ones(device, [2]).item()).rejects.toThrow(/one element, received \[2\]/);
  });
});
