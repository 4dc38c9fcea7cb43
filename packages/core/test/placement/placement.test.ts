import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { OptionError, ShapeError } from "../../src/errors.ts";
import type { Coordinate } from "../../src/mesh.ts";
import { layoutOf } from "../../src/placement/layout.ts";
import { contiguous, type Placement, resolvePlacement, striped, zigzag } from "../../src/placement/placement.ts";
import { positions, spansLength } from "../../src/placement/span.ts";

const placements: readonly Placement[] = [contiguous(), zigzag(), striped()];
const anyPlacement = fc.constantFrom(...placements);
const sortAscending = (numbers: Iterable<number>) => [...numbers].toSorted((a, b) => a - b);
const range = (length: number) => Array.from({ length }, (_, i) => i);

test("shards are disjoint and cover every position, for any length and number of shards", () => {
  fc.assert(
    fc.property(anyPlacement, fc.integer({ min: 1, max: 9 }), fc.nat(40), (placement, count, length) => {
      const shardPositions = range(count).flatMap((index) => [...positions(placement.spans(index, count, length))]);
      expect(sortAscending(shardPositions)).toEqual(range(length));
    }),
  );
});

test("shard sizes differ by at most one row, and by at most two for zigzag", () => {
  fc.assert(
    fc.property(anyPlacement, fc.integer({ min: 1, max: 9 }), fc.nat(40), (placement, count, length) => {
      const sizes = range(count).map((index) => spansLength(placement.spans(index, count, length)));
      expect(Math.max(...sizes) - Math.min(...sizes)).toBeLessThanOrEqual(placement.name === "zigzag" ? 2 : 1);
    }),
  );
});

test("contiguous, zigzag and striped return the expected positions", () => {
  expect(positions(contiguous().spans(0, 3, 10))).toEqual(Int32Array.of(0, 1, 2, 3));
  expect(positions(contiguous([1, 0, 4]).spans(2, 3, 5))).toEqual(Int32Array.of(1, 2, 3, 4));
  expect(positions(zigzag().spans(1, 2, 8))).toEqual(Int32Array.of(2, 3, 4, 5));
  expect(positions(striped().spans(1, 3, 8))).toEqual(Int32Array.of(1, 4, 7));
  expect(spansLength(striped().spans(7, 8, 3))).toBe(0);
});

test("positions rejects values that do not fit in an Int32Array", () => {
  expect(positions([{ start: 2 ** 31 - 2, length: 2, step: 1 }])).toEqual(Int32Array.of(2 ** 31 - 2, 2 ** 31 - 1));
  expect(() => positions([{ start: 2 ** 31 - 2, length: 2, step: 2 }])).toThrow(ShapeError);
  expect(() => positions([{ start: -1, length: 2, step: 1 }])).toThrow(ShapeError);
  expect(positions([{ start: 2 ** 40, length: 0, step: 1 }]).length).toBe(0);
});

test("contiguous does not follow later changes to its lengths", () => {
  const lengths = [1, 4];
  const placement = contiguous(lengths);
  lengths[1] = 2;
  expect(placement.spans(1, 2, 5)).toEqual([{ start: 1, length: 4, step: 1 }]);
});

test("layoutOf rejects invalid lengths, duplicate axes and unknown options", () => {
  const mesh = { sp: 2 };
  for (const length of [2.5, -1, NaN])
    expect(() => layoutOf({ mesh, axes: ["sp"], length })).toThrow(/length: expected an integer/);
  expect(() => layoutOf({ mesh, axes: ["sp", "sp"], length: 4 })).toThrow(/received duplicate "sp"/);
  expect(() => layoutOf({ mesh, axes: ["sp"], length: 4, placment: zigzag() } as never)).toThrow(/received "placment"/);
});

test("layoutOf rejects the axis names that init rejects", () => {
  expect(() => layoutOf({ mesh: { "0": 2, sp: 2 }, axes: ["sp"], length: 4 })).toThrow(
    'layoutOf: mesh: expected axis names that begin with a letter or an underscore, received "0"',
  );
  expect(() => layoutOf({ mesh: { data: 2, sp: 2 }, axes: ["sp"], length: 4 })).toThrow(
    'layoutOf: mesh: expected data-parallel axes that are named "dp", or whose names begin with "dp_", received "data"',
  );
});

test("every zigzag shard has the same work under a causal mask", () => {
  const pairsPerRank = range(4).map((index) =>
    [...positions(zigzag().spans(index, 4, 64))].reduce((sum, q) => sum + q + 1, 0),
  );
  expect(new Set(pairsPerRank).size).toBe(1);
});

describe("a layout", () => {
  const mesh: Coordinate = { dp: 2, node: 2, gpu: 3 };

  test("numbers shards row-major over its axes and ignores the others", () => {
    const layout = layoutOf({ mesh, axes: ["node", "gpu"], length: 12 });
    expect(layout.spans({ dp: 0, node: 1, gpu: 2 })).toEqual([{ start: 10, length: 2, step: 1 }]);
    expect(layout.spans({ dp: 1, node: 1, gpu: 2 })).toEqual([{ start: 10, length: 2, step: 1 }]);
  });

  test("concatenates all shards along the axes that a coordinate omits", () => {
    fc.assert(
      fc.property(anyPlacement, fc.nat(40), fc.nat(1), fc.nat(2), (placement, length, node, gpu) => {
        const layout = layoutOf({ mesh, axes: ["node", "gpu"], placement, length });
        const listPositions = (coordinate: Coordinate) => [...positions(layout.spans(coordinate))];
        expect(listPositions({ node })).toEqual(range(3).flatMap((each) => listPositions({ node, gpu: each })));
        expect(listPositions({ gpu })).toEqual(range(2).flatMap((each) => listPositions({ node: each, gpu })));
        expect(sortAscending(listPositions({}))).toEqual(range(length));
      }),
    );
  });

  test("joins adjacent spans", () => {
    const layout = layoutOf({ mesh, axes: ["node", "gpu"], length: 13 });
    expect(layout.spans({})).toEqual([{ start: 0, length: 13, step: 1 }]);
    expect(layoutOf({ mesh, axes: [], placement: zigzag(), length: 9 }).spans({ node: 1 })).toEqual([
      { start: 0, length: 9, step: 1 },
    ]);
  });

  test("is one immutable object for the same placement, axes and length", () => {
    const layoutOptions = { mesh: { dp: 2, sp: 2 }, axes: ["sp"], placement: "zigzag", length: 9 } as const;
    const axes = ["sp"];
    const layout = layoutOf({ ...layoutOptions, axes });
    expect(layoutOf({ ...layoutOptions, mesh: { dp: 3, sp: 2 }, placement: zigzag() })).toBe(layout);
    for (const otherOptions of [{ length: 8 }, { mesh: { dp: 2, sp: 3 } }, { axes: ["dp"] }, { placement: striped() }])
      expect(layoutOf({ ...layoutOptions, ...otherOptions })).not.toBe(layout);
    axes.push("dp");
    expect(layout.axes).toEqual(["sp"]);
    const spans = layout.spans({ sp: 0 });
    expect([layout, layout.axes, spans, ...spans].every((each) => Object.isFrozen(each))).toBe(true);
    // Sequences that grow with every call do not fill memory.
    for (let length = 100; length < 200; length++) layoutOf({ ...layoutOptions, length });
    expect(layoutOf(layoutOptions)).not.toBe(layout);
    expect(layoutOf(layoutOptions).spans({ sp: 0 })).toEqual(spans);
  });

  test("rejects an axis that the mesh lacks", () => {
    expect(() => layoutOf({ mesh, axes: ["sp"], length: 4 })).toThrow(/dp, node, gpu, received "sp"/);
  });
});

const invalidShards: readonly (readonly [index: number, count: number, length: number])[] = [
  ...[-1, 2, 5, 0.5, Number.NaN, Infinity].map((index) => [index, 2, 8] as const),
  ...[0, -1, 1.5, Number.NaN, Infinity].map((count) => [0, count, 8] as const),
  ...[-1, 1.5, Number.NaN, Infinity].map((length) => [0, 2, length] as const),
];

test.each(invalidShards)("every placement rejects shard %d of %d for a length of %d", (...shard) => {
  for (const placement of [...placements, contiguous([4, 4])]) {
    expect(() => placement.spans(...shard)).toThrow(
      /spans: expected \[index, count, length\] of integers with 0 ≤ index < count/,
    );
  }
});

test("contiguous rejects invalid lengths, and resolvePlacement rejects unknown names", () => {
  expect(() => contiguous([1, -1])).toThrow(OptionError);
  expect(() => contiguous([1, 2]).spans(0, 2, 4)).toThrow(ShapeError);
  expect(() => contiguous([1, 2]).spans(0, 3, 3)).toThrow(/3 lengths that sum to 3/);
  expect(() => resolvePlacement("zickzack" as "zigzag")).toThrow(/contiguous, zigzag, striped.*"zickzack"/);
  expect(resolvePlacement("striped").name).toBe("striped");
});
