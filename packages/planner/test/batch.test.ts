import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring, ringTraffic } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import { type AttentionBackend, type AttentionModifiers, type Coordinate, local, masks, zigzag } from "@mosaic/core";
import { resolveBatchMaskUnchecked } from "@mosaic/core/context-parallel";
import { describe, expect, test } from "vitest";
import { count, predict, profiles, prove, record, recordRepresentatives, type RecordOptions } from "../src/index.ts";
import { placements } from "./shapes.ts";

// Batches whose samples see different keys.

const lengths = { queries: [20, 67, 0], keys: [20, 67, 0] };
const batches: readonly Pick<RecordOptions, "mask" | "lengths" | "padding">[] = [
  { mask: masks.causal(), lengths, padding: "left" },
  { mask: masks.causal(), lengths, padding: "right" },
  { mask: [masks.documents([10, 30, 27], "causal"), masks.slidingWindow(9), masks.full()] },
];
const sizes = { tokens: 67, numHeads: 4, numKvHeads: 2, headDim: 8, batch: 3 };

interface Arrangement {
  readonly name: string;
  readonly backend: AttentionBackend;
  readonly mesh: Coordinate;
}

const arrangements: readonly Arrangement[] = [
  { name: "local", backend: local(), mesh: { dp: 2 } },
  { name: "ring of 5", backend: ring(), mesh: { sp: 5 } },
  { name: "ring in ring", backend: ring({ axis: "node", inner: ring({ axis: "gpu" }) }), mesh: { node: 2, gpu: 3 } },
  { name: "mesh2d", backend: mesh2d({ shape: [2, 3], schedule: "overlapped" }), mesh: { sp: 6 } },
  { name: "mesh2d, fused", backend: mesh2d({ shape: [3, 2], schedule: "fused" }), mesh: { sp: 6 } },
  { name: "ulysses", backend: ulysses(), mesh: { sp: 3 } },
  {
    name: "ring in ulysses",
    backend: ulysses({ axis: "head", inner: ring({ axis: "seq" }) }),
    mesh: { seq: 2, head: 2 },
  },
];

test.each(arrangements)("$name is proved correct for masks and lengths per sample", ({ backend, mesh }) => {
  for (const placement of placements) {
    for (const batch of batches)
      expect(prove(record({ backend, mesh, placement, ...batch, ...sizes })).violations).toEqual([]);
  }
});

test("ranks that differ along axes that the backend does not use have different sequences", () => {
  const mesh = { dp_replicate: 2, sp: 2, dp_shard: 3 };
  const { ranks } = record({ backend: ring(), mesh, ...sizes });
  const firstSequences = ranks.map(({ firstSequence }) => firstSequence);
  expect(firstSequences).toEqual([0, 3, 6, 0, 3, 6, 9, 12, 15, 9, 12, 15]);
});

test("the counted traffic of a ring equals the closed form for the union of the samples", () => {
  const mesh = { sp: 4 };
  const options = { backend: ring(), mesh, ...sizes, lengths: { queries: [20, 30, 0], keys: [20, 30, 0] } };
  const attentionRecord = record({ ...options, mask: masks.causal() });
  const { tokens, batch, numKvHeads, headDim } = sizes;
  const batchOptions = { mask: masks.causal(), lengths: options.lengths, padding: "right" } as const;
  const resolvedMask = resolveBatchMaskUnchecked("test", batchOptions, { batch, queries: tokens, keys: tokens });
  for (const [sp, { forward, backward }] of count(attentionRecord).ranks.entries()) {
    const call = { at: { sp }, ...resolvedMask, queries: attentionRecord.queries, keys: attentionRecord.keys };
    const traffic = ringTraffic({ mesh, call, width: batch * numKvHeads * headDim, dtype: "bfloat16" });
    expect([forward.sent.bytes, backward.sent.bytes]).toEqual([traffic.forward.bytesSent, traffic.backward.bytesSent]);
  }
  // Of 67 rows, the last 37 are padding in every sample. The last rank requires no keys, and no rank requires its keys.
  expect(count(attentionRecord).ranks[3]!.forward.received.bytes).toBe(0);
  expect(count(attentionRecord).ranks[3]!.forward.sent.bytes).toBe(0);
});

describe("prove", () => {
  /** A ring whose tiles have other sample masks, or none. */
  const createFaultyRing = (
    change: (modifiers: AttentionModifiers) => AttentionModifiers | undefined,
  ): AttentionBackend => {
    const localBackend = local();
    const inner: AttentionBackend = {
      ...localBackend,
      attend(ctx, call, state, kv) {
        const isFaultSite = ctx.rank === 1 && kv.from["sp"] === 0;
        localBackend.attend(ctx, isFaultSite ? { ...call, modifiers: change(call.modifiers!) } : call, state, kv);
      },
    };
    return ring({ inner });
  };
  const options = { mesh: { sp: 3 }, ...sizes, ...batches[1] };

  test.each<[string, (modifiers: AttentionModifiers) => AttentionModifiers | undefined]>([
    ["masks in another order", ({ sampleMasks = [] }) => ({ sampleMasks: sampleMasks.toReversed() })],
    [
      "the mask of one sample for all",
      ({ sampleMasks = [] }) => ({ sampleMasks: sampleMasks.map(() => sampleMasks[1]!) }),
    ],
    ["a mask that a sample lacks", ({ sampleMasks = [] }) => ({ sampleMasks: [[], ...sampleMasks.slice(1)] })],
    ["no masks", () => undefined],
  ])("reports a tile that is computed with %s", (_, change) => {
    const violations = prove(record({ backend: createFaultyRing(change), ...options })).violations;
    expect(violations.length).toBeGreaterThan(0);
    expect(violations[0]!.message).toContain("rank 1");
    expect(prove(record({ backend: createFaultyRing((modifiers) => modifiers), ...options })).violations).toEqual([]);
  });
});

test("the predicted time depends on the sum of the mask areas of all samples", () => {
  const call = { backend: local(), mesh: { dp: 1 }, numHeads: 8, headDim: 64, tokens: 8192, batch: 2 };
  const predictSeconds = (...tokens: readonly number[]): number =>
    predict({ ...call, lengths: { queries: tokens, keys: tokens } }, profiles["h100-ib400"]).seconds;
  const [bothLongSeconds, oneLongSeconds, bothShortSeconds] = [
    predictSeconds(8192, 8192),
    predictSeconds(4096, 8192),
    predictSeconds(4096, 4096),
  ];
  // Halving a sample removes three quarters of its area, whatever the other sample is.
  expect(bothLongSeconds - oneLongSeconds).toBeGreaterThan(0.25 * bothLongSeconds);
  expect(oneLongSeconds - bothShortSeconds).toBeCloseTo(bothLongSeconds - oneLongSeconds, 12);
});

test("equivalence classes of ranks are found for batches with a mask per sample", () => {
  const call = {
    backend: ring(),
    mesh: { sp: 16 },
    tokens: 128,
    numHeads: 2,
    headDim: 4,
    batch: 2,
    placement: zigzag(),
  };
  // Samples that fill the sequence, under masks that give all ranks of zigzag placement equal work.
  const attentionRecord = recordRepresentatives({ ...call, mask: [masks.full(), masks.causal()] });
  expect(attentionRecord.ranks.length).toBeLessThan(16);
  expect(prove(attentionRecord).violations).toEqual([]);
  // Half of each sample is visible. The sum of both equals the area of one sample, but not every pair is visible.
  const halfMasks = [
    masks.fromSlices([{ q0: 0, q1: 64, k0: 0, k1: 128, type: "full" }]),
    masks.fromSlices([{ q0: 64, q1: 128, k0: 0, k1: 128, type: "full" }]),
  ];
  expect(prove(recordRepresentatives({ ...call, mask: halfMasks })).violations).toEqual([]);
});
