import { flex } from "@mosaic/backend-flex";
import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import {
  type AttentionBackend,
  contiguous,
  type Coordinate,
  local,
  type Mask,
  masks,
  striped,
  zigzag,
} from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { prove, record } from "../src/index.ts";
import { gatheringBackend } from "./gathering.ts";

const someMasks: readonly Mask[] = [
  masks.full(),
  masks.causal(),
  masks.slidingWindow(9),
  masks.documents([10, 30, 27], "causal"),
];
const sizes = { tokens: 67, numHeads: 4, numKvHeads: 2, headDim: 8, batch: 2 };

function createArrangement(name: string, backend: AttentionBackend, mesh: Coordinate) {
  return { name, backend, mesh };
}

describe.each([
  createArrangement("local", local(), { dp: 3 }),
  createArrangement("ring of 5", ring(), { sp: 5 }),
  createArrangement("ring beside data parallelism", ring(), { dp: 2, sp: 3 }),
  createArrangement("ring beside replicas and shards", ring(), { dp_replicate: 2, sp: 3, dp_shard: 2 }),
  createArrangement("ring in ring", ring({ axis: "node", inner: ring({ axis: "gpu" }) }), { node: 2, gpu: 3 }),
  createArrangement("more ranks than rows", ring(), { sp: 70 }),
])("$name", ({ backend, mesh }) => {
  test.each([contiguous(), zigzag(), striped()])(
    "is proved correct for every mask, with $name placement",
    (placement) => {
      for (const mask of someMasks) {
        expect(prove(record({ backend, mesh, mask, placement, ...sizes })).violations, mask.name).toEqual([]);
      }
    },
  );

  test("is proved correct for keys of a different length than the queries", () => {
    expect(prove(record({ backend, mesh, ...sizes, keyTokens: 41 })).violations).toEqual([]);
  });
});

test("prove follows gradients of float32 inputs and of heads of size one", () => {
  const attentionRecord = record({
    backend: ring(),
    mesh: { sp: 4 },
    tokens: 4,
    numHeads: 1,
    headDim: 1,
    dtype: "float32",
  });
  expect(prove(attentionRecord).violations).toEqual([]);
});

test("prove accepts the merge of two empty states", () => {
  // A block with a visible pair of its two rows, but with none of the rows that are returned to the row's own rank.
  const sizes = { mesh: { sp: 5 }, tokens: 2, keyTokens: 64, numHeads: 3, headDim: 5 };
  const call = { ...sizes, mask: masks.slidingWindow(2), placement: striped() };
  expect(prove(record({ backend: mesh2d({ schedule: "overlapped" }), ...call })).violations).toEqual([]);
});

test.each([
  [6, 2, 3],
  [9, 3, 4],
  [9, 3, 6],
])(
  "ulysses with %i query heads and %i KV heads is proved on %i ranks whose shares begin within groups",
  (numHeads, numKvHeads, sp) => {
    const call = { mesh: { sp }, tokens: 17, numHeads, numKvHeads, headDim: 4, batch: 2, mask: masks.causal() };
    expect(prove(record({ backend: ulysses(), ...call })).violations).toEqual([]);
    // A tile of such a share that is computed twice.
    const localBackend = local();
    const repeatingBackend: AttentionBackend = {
      ...localBackend,
      attendBackward(ctx, call, grads, kv) {
        localBackend.attendBackward(ctx, call, grads, kv);
        if (ctx.rank === 1) localBackend.attendBackward(ctx, call, grads, kv);
      },
    };
    const kinds = prove(record({ backend: ulysses({ inner: repeatingBackend }), ...call })).violations.map(
      ({ kind }) => kind,
    );
    expect(kinds.length).toBeGreaterThan(0);
    expect(new Set(kinds)).toEqual(new Set(["duplicate"]));
  },
);

test("prove follows sums of rows whose heads were computed by different ranks", () => {
  // ulysses adds dk head by head. A rank that requires some rows of a shard returns all heads of these rows at once.
  const placement = {
    name: "unequal",
    spans: (index: number, _count: number, length: number) => {
      const bounds = [0, length - 3, length - 3, length - 1, length - 1, length, length];
      return [{ start: bounds[index]!, length: bounds[index + 1]! - bounds[index]!, step: 1 }];
    },
  };
  const sizes = { mesh: { node: 3, gpu: 2 }, tokens: 11, keyTokens: 11, numHeads: 2, headDim: 4 };
  const backend = flex({ axis: "node", stages: 0, inner: ulysses({ axis: "gpu" }) });
  for (const mask of [masks.causal(), masks.slidingWindow(5)]) {
    expect(prove(record({ backend, mask, placement, ...sizes })).violations, mask.name).toEqual([]);
  }
});

test("prove follows collectives", () => {
  const sizes = { mesh: { dp: 2, sp: 4 }, tokens: 20, numHeads: 1, headDim: 4 };
  for (const placement of [contiguous(), striped()]) {
    for (const mask of [masks.full(), masks.causal()]) {
      expect(prove(record({ backend: gatheringBackend(), mask, placement, ...sizes })).violations).toEqual([]);
    }
  }
});

test("peakBytes is the size of the inputs, the results and the buffers of a ring", () => {
  const attentionRecord = record({ backend: ring(), mesh: { sp: 4 }, tokens: 64, numHeads: 2, headDim: 16 });
  const shardElements = 16 * 2 * 16;
  const { peakBytes } = prove(attentionRecord);
  // q k v dOut out, bfloat16; lse and delta; dq dk dv; two chunks of K and V to rotate; three of dK and dV.
  const expectedPeakBytes =
    5 * shardElements * 2 + 2 * (16 * 2 * 4) + 3 * shardElements * 4 + 4 * shardElements * 2 + 6 * shardElements * 4;
  expect(peakBytes).toEqual(new Array(4).fill(expectedPeakBytes));
});

test("proving a record twice gives the same result", () => {
  const attentionRecord = record({ backend: ring(), mesh: { sp: 3 }, ...sizes });
  expect(prove(attentionRecord)).toEqual(prove(attentionRecord));
});
