import fc from "fast-check";
import { expect, test } from "vitest";
import { local } from "../../src/attention/backend.ts";
import { dependencyTable, dependencyTableCache, modulo } from "../../src/context-parallel/dependencies.ts";
import { unionSlices } from "../../src/mask/samples.ts";
import type { Context } from "../../src/context.ts";
import { visibleKeyRange, type Slice } from "../../src/mask/slice.ts";
import { causal, full, fromSlices, slidingWindow } from "../../src/mask/index.ts";
import type { Coordinate } from "../../src/mesh.ts";
import { contiguous, type Layout, zigzag } from "../../src/placement/placement.ts";
import { layoutOf } from "../../src/placement/layout.ts";
import { positions } from "../../src/placement/span.ts";

/** Returns whether any of these keys is visible to any of these queries, by checking all pairs. */
function canSee(queries: Iterable<number>, keys: Iterable<number>, slices: readonly Slice[]): boolean {
  const isPairVisible = (q: number, k: number) =>
    slices.some((slice) => {
      const { start, end } = visibleKeyRange(slice, q);
      return q >= slice.q0 && q < slice.q1 && k >= start && k < end;
    });
  return [...queries].some((q) => [...keys].some((k) => isPairVisible(q, k)));
}

const listPositions = (layout: Layout, coordinate: Coordinate) => positions(layout.spans(coordinate));
const masks = [
  full(),
  causal(),
  slidingWindow(3),
  fromSlices([{ q0: 2, q1: 5, k0: 9, k1: 11, type: "full" }]),
  fromSlices([]),
];

const calls = fc.record({
  node: fc.integer({ min: 1, max: 4 }),
  gpu: fc.integer({ min: 1, max: 3 }),
  length: fc.integer({ min: 12, max: 30 }),
  placement: fc.constantFrom(contiguous(), zigzag()),
  mask: fc.constantFrom(...masks),
});

test("dependencyTable equals a check of all (query, key) pairs, with an inner backend", () => {
  fc.assert(
    fc.property(calls, ({ node, gpu, length, placement, mask }) => {
      const mesh = { node, gpu };
      const rows = layoutOf({ mesh, axes: ["node", "gpu"], placement, length });
      const slices = mask.slices(length, length);
      const inner = { ...local(), axes: ["gpu"] };
      const kvCoordinate = { node: 0, gpu: gpu - 1 };
      const call = { at: { node: 0, gpu: 0 }, mask: slices, queries: rows, keys: rows };
      const table = dependencyTable({ axis: "node", size: node, inner }, call, kvCoordinate);
      let hasDependency = false;
      for (let rank = 0; rank < node; rank++) {
        expect(table.queryRows(rank)).toBe(listPositions(rows, { node: rank, gpu: 0 }).length);
        expect(table.keyRows(rank)).toBe(listPositions(rows, { node: rank, gpu: gpu - 1 }).length);
        for (let source = 0; source < node; source++) {
          const group = listPositions(rows, { node: rank });
          const expectedCompute = canSee(group, listPositions(rows, { node: source }), slices);
          expect(table.needsCompute(rank, source)).toBe(expectedCompute);
          expect(table.needsKv(rank, source)).toBe(
            canSee(group, listPositions(rows, { ...kvCoordinate, node: source }), slices),
          );
          hasDependency ||= expectedCompute;
        }
      }
      expect(table.isEmpty).toBe(!hasDependency);
    }),
  );
});

test("without an inner backend, a rank needs the keys that are visible to its own queries", () => {
  const rows = layoutOf({ mesh: { sp: 4 }, axes: ["sp"], length: 16 });
  const call = { at: { sp: 1 }, mask: slidingWindow(5).slices(16, 16), queries: rows, keys: rows };
  const { needsCompute, needsKv } = dependencyTable({ axis: "sp", size: 4 }, call, call.at);
  const neededSources = [0, 1, 2, 3].map((rank) => [0, 1, 2, 3].filter((source) => needsKv(rank, source)));
  expect(neededSources).toEqual([[0], [0, 1], [1, 2], [2, 3]]);
  expect(needsCompute(2, 1) && !needsCompute(1, 2)).toBe(true);
});

test("a rank needs the keys that are visible in any of its samples", () => {
  const rows = layoutOf({ mesh: { sp: 4 }, axes: ["sp"], length: 16 });
  const slices = (length: number, shift: number): Slice => {
    return { q0: shift, q1: shift + length, k0: shift, k1: shift + length, type: "causal" };
  };
  // The first sample fills the last two shards, the second the first two and a half, the third none.
  const modifiers = { sampleMasks: [[slices(8, 8)], [slices(10, 0)], []] };
  const call = { at: { sp: 1 }, mask: [], modifiers, queries: rows, keys: rows };
  const { needsKv, isEmpty } = dependencyTable({ axis: "sp", size: 4 }, call, call.at);
  const needed = [0, 1, 2, 3].map((rank) => [0, 1, 2, 3].filter((source) => needsKv(rank, source)));
  expect(needed).toEqual([[0], [0, 1], [0, 1, 2], [2, 3]]);
  expect(isEmpty).toBe(false);
  const invisibleCall = { ...call, modifiers: { sampleMasks: [[], [], []] } };
  expect(dependencyTable({ axis: "sp", size: 4 }, invisibleCall, call.at).isEmpty).toBe(true);
});

test("unionSlices merges the masks of all samples without duplicates, and caches the result", () => {
  const [shortSlices, longSlices] = [causal().slices(3, 3), causal().slices(5, 5)];
  const modifiers = { sampleMasks: [shortSlices, longSlices, [...shortSlices]] };
  const call = { mask: full().slices(0, 0), modifiers };
  expect(unionSlices(call)).toEqual([...shortSlices, ...longSlices]);
  expect(unionSlices(call)).toBe(unionSlices({ ...call }));
  expect(unionSlices({ mask: shortSlices })).toBe(shortSlices);
  // The slices that are common to all samples, which are cached separately.
  const commonSlices: readonly Slice[] = [{ q0: 0, q1: 5, k0: 5, k1: 6, type: "full" }];
  expect(unionSlices({ mask: commonSlices, modifiers })).toEqual([...commonSlices, ...shortSlices, ...longSlices]);
});

test("queries that are not sharded along the axis need the same keys on every rank", () => {
  const mesh = { sp: 3 };
  const unshardedLayout = layoutOf({ mesh, axes: [], length: 4 });
  const keys = layoutOf({ mesh, axes: ["sp"], length: 12 });
  const call = { at: {}, mask: causal().slices(4, 12), queries: unshardedLayout, keys };
  const { needsKv, queryRows } = dependencyTable({ axis: "sp", size: 3 }, call, { sp: 1 });
  for (const rank of [0, 1, 2]) {
    expect(queryRows(rank)).toBe(4);
    expect([0, 1, 2].map((source) => needsKv(rank, source))).toEqual([true, true, true]);
  }
});

test("dependencyTableCache shares a table between ranks along its axis, but not across it", () => {
  const mesh = { node: 2, sp: 2 };
  const rows = layoutOf({ mesh, axes: ["node", "sp"], length: 16 });
  const call = { at: { node: 0, sp: 0 }, mask: causal().slices(16, 16), queries: rows, keys: rows };
  const createDependencies = dependencyTableCache({ axis: "sp" });
  const ctx = { mesh: { shape: mesh } } as unknown as Context;
  const firstTable = createDependencies(ctx, call, call.at);
  expect(firstTable.size).toBe(2);
  expect(createDependencies(ctx, { ...call, at: { node: 0, sp: 1 } }, { node: 0, sp: 1 })).toBe(firstTable);
  expect(createDependencies(ctx, call, { node: 1, sp: 0 })).not.toBe(firstTable);
  expect(createDependencies(ctx, { ...call, mask: full().slices(16, 16) }, call.at)).not.toBe(firstTable);
});

test("modulo maps ranks to the range from 0 to size − 1", () => {
  expect([-4, -1, 0, 2, 3, 7].map((rank) => modulo(rank, 3))).toEqual([2, 2, 0, 2, 0, 1]);
});
