import { beforeEach, describe, expect, test, vi } from "vitest";
import { fromArray, ones } from "../../src/creation.ts";
import { add, mul, scale, square } from "../../src/ops/pointwise.ts";
import { concatenate } from "../../src/ops/concatenate.ts";
import { sum } from "../../src/ops/reduction.ts";
import { scope } from "../../src/scope.ts";
import type { Tensor } from "../../src/tensor.ts";
import { createLeaf, readGrad, ReferenceDevice } from "../reference/index.ts";

let device: ReferenceDevice;
beforeEach(() => {
  device = new ReferenceDevice();
});

describe("slices of a tensor", () => {
  test("accumulate their gradients at their offsets in the gradient of the whole tensor", async () => {
    const x = createLeaf(device, [1, 2, 3, 4]);
    using y = scale(x, 2);
    using firstRows = y.slice(0, 0, 3);
    using lastRows = y.slice(0, 1, 4);
    using noRows = y.slice(0, 2, 2);
    using product = mul(firstRows, lastRows);
    using emptySquares = square(noRows);
    using a = sum(product);
    using b = sum(emptySquares);
    using loss = add(a, b);
    loss.backward();
    // d/dx of 4 (x0 x1 + x1 x2 + x2 x3)
    expect(await readGrad(x)).toEqual([8, 16, 24, 12]);
  });

  test("do not write into a gradient that is shared with another tensor", async () => {
    const x = createLeaf(device, [1, 2]);
    using y = scale(x, 1);
    using firstElement = y.slice(0, 0, 1);
    using allElements = y.reshape([2]);
    // Both operands receive the gradient of `viewSum` without a copy, so nothing may be added to it in place.
    using viewSum = add(y, allElements);
    using a = sum(viewSum);
    using b = sum(firstElement);
    using loss = add(a, b);
    loss.backward();
    expect(await readGrad(x)).toEqual([3, 2]);
  });

  test("allocate only one gradient of the whole tensor", async () => {
    const x = createLeaf(device, [...Array.from({ length: 1000 }, (_, i) => i)]);
    using y = scale(x, 1);
    using scopeResult = scope(() =>
      Array.from({ length: 10 }, (_, i) => sum(y.slice(0, 100 * i, 100 * (i + 1)))).reduce(add),
    );
    device.resetPeakMemory();
    const allocatedBefore = device.memory().allocated;
    scopeResult.backward();
    expect(await readGrad(x)).toEqual(new Array(1000).fill(1));
    // The gradients of y and x, and intermediates for one part.
    expect(device.memory().peak - allocatedBefore).toBeLessThan(2.5 * 4000);
  });
});

/** Kernels that a backward runs, in order. */
async function traceBackward(y: Tensor, gradient: Tensor): Promise<string[]> {
  await device.stream.synchronize();
  device.startTrace();
  y.backward(gradient);
  const events = await device.stopTrace();
  return events.map(({ name }) => name);
}

describe("slices without common elements", () => {
  test("are copied to the gradient of the whole tensor, which is neither filled nor added to", async () => {
    const x = createLeaf(device, [1, 2, 3, 4, 5]);
    using y = scale(x, 2);
    using parts = scope(() => concatenate(y.split([2, 0, 1, 2], 0).toReversed(), 0));
    using gradient = fromArray(device, [10, 20, 30, 40, 50], [5]);
    expect(await traceBackward(parts, gradient)).toEqual(["copy", "copy", "copy", "scalar"]);
    expect(await readGrad(x)).toEqual([80, 100, 60, 20, 40]);
  });

  test("are added to zeros if there are many gaps between them", async () => {
    const x = createLeaf(device, new Array<number>(200).fill(1));
    using y = scale(x, 1);
    // Each slice is between two gaps.
    using parts = scope(() =>
      concatenate(
        Array.from({ length: 100 }, (_, i) => y.slice(0, 2 * i, 2 * i + 1)),
        0,
      ),
    );
    using gradient = ones(device, [100]);
    const kernels = await traceBackward(parts, gradient);
    expect(kernels.filter((name) => name === "fill").length).toBeLessThan(20);
    expect(kernels.filter((name) => name === "binary").length).toBeGreaterThan(80);
    expect(await readGrad(x)).toEqual(Array.from({ length: 200 }, (_, i) => (i % 2 === 0 ? 1 : 0)));
  });

  test("are freed if the gradient of the whole tensor cannot be allocated", async () => {
    const x = createLeaf(device, new Array<number>(1000).fill(1));
    using y = scale(x, 1);
    const allocatedBefore = device.memory().allocated;
    {
      using part = y.slice(0, 0, 100);
      using gradient = ones(device, [100]);
      const { empty } = device;
      const spy = vi.spyOn(device, "empty").mockImplementation((shape, dtype) => {
        if (shape[0] === 1000) throw new Error("no memory");
        return empty.call(device, shape, dtype);
      });
      try {
        expect(() => part.backward(gradient)).toThrow("no memory");
      } finally {
        spy.mockRestore();
      }
    }
    expect(device.memory().allocated).toBe(allocatedBefore);
  });

  test("leave zeros at the other positions", async () => {
    for (const axis of [0, 1]) {
      using x = ones(device, [5, 5]);
      x.requiresGrad = true;
      using y = scale(x, 1);
      // One slice in the middle of the unwritten positions, one at their end, and an empty one.
      using sums = scope(() => add(sum(y.slice(axis, 1, 2)), add(sum(y.slice(axis, 3, 5)), sum(y.slice(axis, 2, 2)))));
      sums.backward();
      const isWritten = (i: number): boolean => [1, 3, 4].includes(axis === 0 ? Math.floor(i / 5) : i % 5);
      expect(await readGrad(x)).toEqual(Array.from({ length: 25 }, (_, i) => (isWritten(i) ? 1 : 0)));
    }
  });
});

test("slices that overlap, have gaps or belong to several axes, and the whole tensor, add up in any order", async () => {
  const contributions: Readonly<Record<string, (y: Tensor) => Tensor>> = {
    rows: (y) => y.slice(0, 1, 3),
    overlappingRows: (y) => y.slice(0, 2, 4),
    columns: (y) => y.slice(1, 1, 2),
    columnsWithGaps: (y) => y.slice(1, 0, 3, 2),
    whole: (y) => scale(y, 1),
  };
  const names = Object.keys(contributions);
  for (const first of names) {
    for (const second of names) {
      for (const third of names) {
        using x = ones(device, [4, 3]);
        x.requiresGrad = true;
        using y = scale(x, 1);
        const order = [first, second, third];
        using total = scope(() =>
          order.map((name, i) => scale(sum(contributions[name]!(y)), 10 ** i)).reduce((a, b) => add(a, b)),
        );
        total.backward();
        const isIncluded: Readonly<Record<string, (row: number, column: number) => boolean>> = {
          rows: (row) => row === 1 || row === 2,
          overlappingRows: (row) => row >= 2,
          columns: (_, column) => column === 1,
          columnsWithGaps: (_, column) => column !== 1,
          whole: () => true,
        };
        const expected = Array.from({ length: 12 }, (_, i) =>
          order.reduce((value, name, n) => value + (isIncluded[name]!(Math.floor(i / 3), i % 3) ? 10 ** n : 0), 0),
        );
        expect(await readGrad(x), order.join()).toEqual(expected);
      }
    }
  }
});
