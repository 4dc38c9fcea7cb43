import { ringTraffic } from "@mosaic/backend-ring";
import { runOnWorld } from "@mosaic/conformance";
import { type Context, layoutOf, masks, resolvePlacement, type ProcessGroup, randn, shard, zeros } from "@mosaic/core";
import { symbolicWorld } from "@mosaic/planner";
import { expect, test } from "vitest";
import { type ChosenChunks, HierarchicalMetaAttention, type HierarchicalMetaAttentionOptions } from "../src/index.ts";
import { createChunks } from "./chunked-shape.ts";
import { makeWorld } from "../../../vitest.world.ts";

const sizes = { embedDim: 16, numHeads: 2, summaryDim: 8, metaHeads: 2 } as const;

interface Bytes {
  readonly sent: number;
  readonly received: number;
}

function readBytes(group: ProcessGroup): Bytes {
  const { bytesSent: sent, bytesReceived: received } = group.traffic();
  return { sent, received };
}

const subtractBytes = (a: Bytes, b: Bytes): Bytes => ({ sent: a.sent - b.sent, received: a.received - b.received });

/** Returns the bytes of a forward and its backward as counted by the transport, and those of the closed form. */
async function countTraffic(
  ctx: Context,
  { options, batch, length }: { options: HierarchicalMetaAttentionOptions; batch: number; length: number },
) {
  using module = new HierarchicalMetaAttention(ctx, { ...options, sequenceLength: length });
  const group = ctx.mesh.group("sp");
  const { dtype = "float32", placement = "contiguous" } = options;
  using fullInput = randn(ctx, [batch, length, options.embedDim], { dtype });
  using x = shard(ctx, fullInput, 1, { placement });
  await ctx.device.stream.synchronize();
  const start = readBytes(group);
  using result = await module.forward(x);
  await ctx.device.stream.synchronize();
  const bytesAfterForward = readBytes(group);
  using dOut = zeros(ctx, x.shape, { dtype });
  result.out.backward(dOut);
  await ctx.device.stream.synchronize();
  const { chosen, bytesMoved } = result.meta;
  return {
    forward: subtractBytes(bytesAfterForward, start),
    backward: subtractBytes(readBytes(group), bytesAfterForward),
    chosen,
    bytesMoved,
  };
}

const cases: readonly {
  ranks: number;
  batch: number;
  length: number;
  options: Partial<HierarchicalMetaAttentionOptions>;
}[] = [
  { ranks: 4, batch: 2, length: 40, options: { topK: 2 } },
  { ranks: 3, batch: 3, length: 32, options: { topK: 1, combine: "exact", chunksPerRank: 2, certificate: false } },
  { ranks: 4, batch: 1, length: 37, options: { topK: 2, causal: true, combine: "exact", useCheckpoint: true } },
  { ranks: 4, batch: 2, length: 40, options: { topK: 1, combine: "exact", maxMissedMass: 0.3 } },
  { ranks: 2, batch: 1, length: 20, options: { topK: 0 } },
  { ranks: 3, batch: 2, length: 40, options: { numKvHeads: 1, dtype: "bfloat16", useCheckpoint: true } },
  {
    ranks: 4,
    batch: 2,
    length: 11,
    options: { placement: "zigzag", chunksPerRank: 4, causal: true, dtype: "float16", maxMissedMass: 0.3 },
  },
  { ranks: 5, batch: 1, length: 3, options: { combine: "exact" } },
];

test.each(cases.map((each) => [JSON.stringify(each), each] as const))(
  "traffic is one gather of summaries and the chosen chunks, forward and backward: %s",
  async (_, { ranks, batch, length, options }) => {
    const results = await runOnWorld(makeWorld, { size: ranks }, (ctx) =>
      countTraffic(ctx, { options: { ...sizes, ...options }, batch, length }),
    );
    for (const { forward, backward, chosen, bytesMoved } of results) {
      expect(forward).toEqual(bytesMoved.forward);
      expect(backward).toEqual(bytesMoved.backward);
      expect(chosen).toEqual(results[0]!.chosen);
    }
    // The total over all ranks, computed independently.
    const { summaryDim, embedDim, numHeads } = sizes;
    const { chunksPerRank: perRank = 1, certificate = true, useCheckpoint = false, maxMissedMass } = options;
    const { numKvHeads = numHeads, dtype = "float32" } = options;
    const allChunks = createChunks({ options, length }, ranks);
    const width = (embedDim / numHeads) * numKvHeads;
    const gatheredWidth = summaryDim + (certificate ? width + numKvHeads : 0) + (maxMissedMass ? allChunks.length : 0);
    const requiredChunks = new Set<string>();
    for (const [b, ofBatch] of results[0]!.chosen.entries()) {
      for (const [i, chunks] of ofBatch.entries()) {
        for (const j of chunks) requiredChunks.add(`${b} ${allChunks[i]!.owner} ${j}`);
      }
    }
    let numElements = 0;
    for (const key of requiredChunks) {
      const [, rank, j] = key.split(" ").map(Number) as [number, number, number];
      if (allChunks[j]!.owner !== rank) numElements += 2 * width * allChunks[j]!.tokens.length;
    }
    const totalSent = (pass: "forward" | "backward") => results.reduce((total, each) => total + each[pass].sent, 0);
    const gatherBytes = (rowWidth: number) => (ranks - 1) * ranks * perRank * batch * rowWidth * 4;
    const key = dtype === "float32" ? 4 : 2;
    expect(totalSent("forward")).toBe(gatherBytes(gatheredWidth) + key * numElements);
    expect(totalSent("backward")).toBe(gatherBytes(summaryDim) + (4 + (useCheckpoint ? key : 0)) * numElements);
  },
);

test("bytesMoved.ring equals the closed form of the ring's traffic", async () => {
  const [ranks, length] = [5, 43];
  const mesh = { sp: ranks };
  const optionSets: Partial<HierarchicalMetaAttentionOptions>[] = [
    { mask: masks.full() },
    { mask: masks.causal() },
    { mask: masks.causal(), placement: "zigzag", chunksPerRank: 2 },
    { mask: masks.slidingWindow(12), dtype: "bfloat16" },
    { mask: masks.documents([20, 3, 20]), numKvHeads: 1 },
  ];
  for (const options of optionSets) {
    const { dtype = "float32", placement = "contiguous", numKvHeads = 2 } = options;
    const rows = layoutOf({ mesh, axes: ["sp"], length, placement: resolvePlacement(placement) });
    const mask = options.mask!.slices(length, length);
    const results = await runOnWorld(makeWorld, { size: ranks }, (ctx) =>
      countTraffic(ctx, { options: { ...sizes, ...options }, batch: 3, length }),
    );
    for (const [sp, { bytesMoved }] of results.entries()) {
      const call = { at: { sp }, mask, queries: rows, keys: rows };
      const { forward, backward } = ringTraffic({ mesh, call, width: 3 * 8 * numKvHeads, dtype });
      expect(bytesMoved.ring.forward).toEqual({ sent: forward.bytesSent, received: forward.bytesReceived });
      expect(bytesMoved.ring.backward).toEqual({ sent: backward.bytesSent, received: backward.bytesReceived });
    }
  }
});

test("64 ranks that choose two chunks each send less than 5 % of a ring's bytes", async () => {
  const results = await runOnWorld(makeWorld, { size: 64 }, (ctx) =>
    countTraffic(ctx, { options: { ...sizes, topK: 2, combine: "exact" }, batch: 1, length: 64 * 64 }),
  );
  const sumResults = (select: (each: (typeof results)[number]) => number) =>
    results.reduce((total, each) => total + select(each), 0);
  for (const pass of ["forward", "backward"] as const) {
    const share = sumResults((each) => each[pass].sent) / sumResults(({ bytesMoved }) => bytesMoved.ring[pass].sent);
    expect(share).toBeLessThan(0.05);
    expect(share).toBeGreaterThan(2 / 63 / 2);
  }
});

test("a dry run on symbolic ranks with given chunks sends the bytes that it reports", async () => {
  const { contexts } = symbolicWorld({ mesh: { sp: 64 } });
  const batch = 2;
  const rows = 1024;
  const chosen: ChosenChunks = Array.from({ length: batch }, (_, b) =>
    Array.from({ length: 64 }, (_, i) => [(i + 7 + b) % 64, (i + 32) % 64]),
  );
  for (const combine of ["soft", "exact"] as const) {
    for (const ctx of contexts.filter(({ rank }) => rank % 9 === 0)) {
      using module = new HierarchicalMetaAttention(ctx, { ...sizes, combine });
      using x = zeros(ctx, [batch, rows, 16]);
      const bytesBefore = readBytes(ctx.world);
      using result = await module.forward(x, { chosen, dryRun: true });
      const { bytesMoved } = result.meta;
      // The symbolic group counts only point-to-point messages, not the gather.
      const gatherBytes = 63 * batch * (8 + 16 + 2) * 4;
      expect(subtractBytes(readBytes(ctx.world), bytesBefore).sent).toBe(bytesMoved.forward.sent - gatherBytes);
      expect(bytesMoved.forward.sent / bytesMoved.ring.forward.sent).toBeLessThan(0.04);
      using dOut = zeros(ctx, x.shape);
      result.out.backward(dOut);
      expect(subtractBytes(readBytes(ctx.world), bytesBefore).sent).toBe(
        bytesMoved.forward.sent + bytesMoved.backward.sent - gatherBytes - 63 * batch * 8 * 4,
      );
    }
  }
});
