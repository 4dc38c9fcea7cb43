import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { attention } from "../../src/attention/attention.ts";
import type { Context } from "../../src/context.ts";
import { init } from "../../src/init.ts";
import { fromArray } from "../../src/creation.ts";
import { OptionError, ShapeError } from "../../src/errors.ts";
import { coordinateOf } from "../../src/mesh.ts";
import {
  contiguous,
  type Layout,
  type Placement,
  resolvePlacement,
  striped,
  zigzag,
} from "../../src/placement/placement.ts";
import { layoutOf } from "../../src/placement/layout.ts";
import { positions, type Span } from "../../src/placement/span.ts";
import { resolveShards } from "../../src/placement/verify.ts";
import { measureProcessorTime } from "../processor-time.ts";
import { allGatherBackend, ReferenceDevice, referenceWorld } from "../reference/index.ts";

const span = (start: number, length: number, step = 1): Span => ({ start, length, step });
const placement = (...shards: (readonly Span[])[]): Placement => ({ name: "mine", spans: (index) => shards[index]! });

describe("verification of placements", () => {
  const cases: [what: string, shards: (readonly Span[])[], message: RegExp][] = [
    ["a step of 0", [[span(0, 5, 0)], [span(5, 5)]], /shard 0 of 2: .*step ≥ 1.*received start 0, length 5, step 0/],
    ["a step of 0.5", [[span(0, 5, 0.5)], [span(5, 5)]], /received start 0, length 5, step 0.5/],
    ["a step of −1", [[span(0, 5)], [span(9, 5, -1)]], /shard 1 of 2: .*received start 9, length 5, step -1/],
    ["a step of NaN", [[span(0, 5, Number.NaN)], [span(5, 5)]], /step NaN/],
    ["a start of NaN", [[span(0, 5)], [span(Number.NaN, 5)]], /start NaN/],
    ["a length of NaN", [[span(0, 5)], [span(5, Number.NaN)]], /length NaN/],
    ["a negative start", [[span(-1, 6)], [span(5, 5)]], /start -1/],
    ["a negative length", [[span(0, 10)], [span(10, -1)]], /length -1/],
    ["positions outside", [[span(0, 5)], [span(5, 6)]], /end before position 10, received start 5, length 6/],
    ["an overlap", [[span(0, 6)], [span(5, 5)]], /position 5 in shards 0 and 1/],
    [
      "an overlap of strides",
      [[span(0, 5, 2)], [span(1, 2, 2), span(4, 1), span(5, 3, 2)]],
      /position 4 in shards 0 and 1/,
    ],
    ["an overlap of different strides", [[span(0, 4, 3)], [span(1, 2), span(4, 2, 2)]], /position 6 in shards 0 and 1/],
    ["a shard that holds a position twice", [[span(0, 5), span(4, 1)], [span(5, 5)]], /position 4 twice in shard 0/],
    ["a gap", [[span(0, 5)], [span(6, 4)]], /all 10 positions, received 9 positions; position 5 is in no shard/],
    ["an empty placement", [[], []], /received 0 positions; position 0 is in no shard/],
    [
      "no list",
      [[span(0, 10)], undefined as never],
      /an array of spans \{ start, length, step \} for every shard, received undefined for shard 1/,
    ],
  ];
  test.each(cases)("rejects %s", (_, shards, message) => {
    const options = { mesh: { sp: 2 }, axes: ["sp"], placement: placement(...shards), length: 10 };
    expect(() => layoutOf(options)).toThrow(ShapeError);
    expect(() => layoutOf(options)).toThrow(message);
  });

  test("rejects invalid spans in a layout that layoutOf did not create", async () => {
    await using ctx = await init({ device: new ReferenceDevice(), rank: 0, worldSize: 1 });
    using x = fromArray(ctx, new Array<number>(16).fill(1), [1, 1, 4, 4]);
    const rows = layoutOf({ mesh: ctx.mesh.shape, axes: [], length: 4 });
    const createKeyLayout = (heldSpan: Span): Layout => ({ length: 4, axes: [], spans: () => [heldSpan] });
    const attendWithLayout = (layout: unknown) => attention(ctx, x, x, x, { queries: rows, keys: layout as Layout });
    expect(() => attendWithLayout(createKeyLayout(span(0, 4, 0)))).toThrow(/keys.*step 0/);
    expect(() => attendWithLayout(createKeyLayout(span(1, 4)))).toThrow(/end before position 4/);
    expect(() => attendWithLayout(null)).toThrow(OptionError);
    attendWithLayout(createKeyLayout(span(0, 4))).dispose();
  });

  test("rejects a layout of another mesh, even if it was verified before", async () => {
    const rows = layoutOf({ mesh: { sp: 4 }, axes: ["sp"], length: 16 });
    const ownLayout: Layout = { ...rows };
    for (const [layout, message] of [
      [
        rows,
        /queries: expected a layout for the context's mesh, \{ sp: 2 \}, received a layout for a mesh \{ sp: 4 \}; create it with layoutOf/,
      ],
      [ownLayout, /queries: expected shards that cover all 16 positions, received 8 positions/],
    ] as const) {
      const attend = (ctx: Context) => {
        using x = fromArray(ctx, new Array<number>(8).fill(1), [1, 1, 4, 2]);
        return attention(ctx, x, x, x, { backend: allGatherBackend(), queries: layout, keys: layout });
      };
      for (const mesh of [{ sp: 4 }, { dp: 1, sp: 4 }]) {
        const outputs = (await referenceWorld(4, { mesh })).map(attend);
        await Promise.all(outputs.map((out) => out.read()));
      }
      for (const ctx of await referenceWorld(2, { mesh: { sp: 2 } })) {
        expect(() => attend(ctx)).toThrow(ShapeError);
        expect(() => attend(ctx)).toThrow(message);
      }
    }
  });
});

/** Shards that contain each position exactly once, with spans of several steps. */
const partitions = fc
  .array(
    fc.record({ shard: fc.nat(3), step: fc.integer({ min: 1, max: 4 }), blocks: fc.integer({ min: 1, max: 4 }) }),
    {
      minLength: 1,
      maxLength: 8,
    },
  )
  .map((shardPieces) => {
    const shards: Span[][] = [[], [], [], []];
    let start = 0;
    for (const { shard, step, blocks: numBlocks } of shardPieces) {
      for (let i = 0; i < step; i++) shards[(shard + i) % 4]!.push(span(start + i, numBlocks, step));
      start += step * numBlocks;
    }
    return { shards, length: start };
  });

test("resolveShards accepts every partition, and rejects every change that breaks it", () => {
  fc.assert(
    fc.property(partitions, fc.nat(), fc.integer({ min: -3, max: 3 }), ({ shards, length }, spanIndex, change) => {
      expect(resolveShards(placement(...shards), 4, length)).toEqual(shards);
      const spanIndices = shards.flatMap((spans, shard) => spans.map((_, i) => [shard, i] as const));
      const [shard, i] = spanIndices[spanIndex % spanIndices.length]!;
      for (const field of ["start", "length", "step"] as const) {
        const changedShards = shards.map((spans) => spans.map((each) => ({ ...each })));
        const changedSpan = changedShards[shard]![i]!;
        changedShards[shard]![i] = { ...changedSpan, [field]: changedSpan[field] + change };
        const validSpans = changedShards
          .flatMap((spans) => spans)
          .filter((each) => each.length > 0 && each.step > 0 && each.start >= 0);
        const isPartition =
          changedShards.flat().every((each) => each.start >= 0 && each.length >= 0 && each.step >= 1) &&
          [...positions(validSpans)].toSorted((a, b) => a - b).join() === Array.from({ length }, (_, n) => n).join();
        const resolveChanged = () => resolveShards(placement(...changedShards), 4, length);
        if (isPartition) expect(resolveChanged()).toEqual(changedShards);
        else expect(resolveChanged).toThrow(ShapeError);
      }
    }),
    { numRuns: 500 },
  );
});

test("a placement is verified once per number of shards and length", () => {
  let calls = 0;
  const countingPlacement: Placement = {
    name: "counted",
    spans: (index, count, length) => {
      calls++;
      return contiguous().spans(index, count, length);
    },
  };
  const options = { mesh: { sp: 3 }, axes: ["sp"], placement: countingPlacement };
  for (let i = 0; i < 5; i++) layoutOf({ ...options, length: 10 }).spans({ sp: 1 });
  expect(calls).toBe(3);
  layoutOf({ ...options, length: 11 });
  expect(calls).toBe(6);
  expect([contiguous(), zigzag(), striped()].map((each) => resolvePlacement(each.name as "zigzag") === each)).toEqual([
    true,
    true,
    true,
  ]);
});

test("a billion positions in 4096 striped or zigzag shards are verified in less than a second of processor time", () => {
  const [count, length] = [4096, 2 ** 30 + 5];
  const milliseconds = measureProcessorTime(() => {
    resolveShards({ ...striped() }, count, length);
    resolveShards({ ...zigzag() }, count, length);
  });
  expect(milliseconds).toBeLessThan(1000);
});

test("faults in huge sequences are found in less than half a second of processor time", () => {
  const findFault =
    (length: number, ...spans: Span[]) =>
    () =>
      resolveShards(placement(spans), 1, length);
  const milliseconds = measureProcessorTime(() => {
    expect(findFault(2 ** 40, span(0, 2 ** 40 - 1))).toThrow(
      /all 1099511627776 positions, received 1099511627775 positions$/,
    );
    expect(findFault(2 ** 40, span(1, 2 ** 40 - 1))).toThrow(/position 0 is in no shard/);
    // 1 000 003 · i and 5 + 999 983 · j
    expect(findFault(2 ** 50, span(0, 1e8, 1_000_003), span(5, 1e8, 999_983))).toThrow(
      /position 249996749988 twice in shard 0/,
    );
    expect(findFault(2 ** 50, span(0, 1e8, 1_000_002), span(5, 1e8, 999_984))).toThrow(/position \d+ is in no shard/);
  });
  expect(milliseconds).toBeLessThan(500);
});

test("coordinates, meshes and ranks out of range are rejected", () => {
  const layout = layoutOf({ mesh: { node: 2, sp: 2 }, axes: ["node", "sp"], length: 10 });
  layout.spans({ node: 1, sp: 0 });
  for (const sp of [2, 3, 5, -1, 0.5, Number.NaN]) {
    expect(() => layout.spans({ node: 0, sp })).toThrow(/Layout.spans: expected an integer from 0 to 1 for axis "sp"/);
  }
  for (const sp of [0, -1, 1.5, Number.NaN]) {
    expect(() => layoutOf({ mesh: { sp }, axes: ["sp"], length: 10 })).toThrow(
      /mesh axis "sp": expected an integer ≥ 1/,
    );
    // Also for an axis along which the sequence is not sharded.
    expect(() => layoutOf({ mesh: { dp: sp, sp: 2 }, axes: ["sp"], length: 10 })).toThrow(
      /mesh axis "dp": expected an integer ≥ 1/,
    );
    expect(() => coordinateOf(0, { dp: 2, sp })).toThrow(
      /coordinateOf: mesh: expected axis lengths that are integers ≥ 1/,
    );
  }
  for (const rank of [-1, 4, 0.5, Number.NaN]) {
    expect(() => coordinateOf(rank, { dp: 2, sp: 2 })).toThrow(/coordinateOf: expected a rank from 0 to 3/);
  }
  for (const invalidPlacement of [undefined, null, 3, {}])
    expect(() => resolvePlacement(invalidPlacement as never)).toThrow(OptionError);
});
