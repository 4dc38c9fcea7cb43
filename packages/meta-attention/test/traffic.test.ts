import { ringTraffic } from "@mosaic/backend-ring";
import { onWorld } from "@mosaic/conformance";
import { causal, type Context, full, layoutOf, type ProcessGroup, randn, zeros } from "@mosaic/core";
import { symbolicWorld } from "@mosaic/planner";
import { expect, test } from "vitest";
import { type Chosen, HierarchicalMetaAttention, type HierarchicalMetaAttentionOptions } from "../src/index.ts";
import { shardOf } from "./step.ts";
import { makeWorld } from "./world.ts";

const sizes = { embedDim: 16, numHeads: 2, summaryDim: 8, metaHeads: 2 } as const;

interface Bytes {
  readonly sent: number;
  readonly received: number;
}

function bytesOf(group: ProcessGroup): Bytes {
  const { bytesSent: sent, bytesReceived: received } = group.traffic();
  return { sent, received };
}

const minus = (a: Bytes, b: Bytes): Bytes => ({ sent: a.sent - b.sent, received: a.received - b.received });

/** What a forward and its backward moved, counted by the transport, beside the closed form. */
async function counted(
  ctx: Context,
  { options, batch, length }: { options: HierarchicalMetaAttentionOptions; batch: number; length: number },
) {
  using module = new HierarchicalMetaAttention(ctx, { ...options, sequenceLength: length });
  const group = ctx.mesh.group("sp");
  const { rows } = shardOf(length, group.size, group.rank);
  using x = randn(ctx, [batch, rows, options.embedDim]);
  await ctx.device.stream.synchronize();
  const start = bytesOf(group);
  using result = await module.forward(x);
  await ctx.device.stream.synchronize();
  const between = bytesOf(group);
  using dOut = zeros(ctx, x.shape);
  result.out.backward(dOut);
  await ctx.device.stream.synchronize();
  const { chosen, bytesMoved } = result.meta;
  return { forward: minus(between, start), backward: minus(bytesOf(group), between), chosen, bytesMoved };
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
];

test.each(cases.map((each) => [JSON.stringify(each), each] as const))(
  "bytes are one gather of summaries and the chosen chunks, both ways: %s",
  async (_, { ranks, batch, length, options }) => {
    const results = await onWorld(makeWorld, { size: ranks }, (ctx) =>
      counted(ctx, { options: { ...sizes, ...options }, batch, length }),
    );
    for (const { forward, backward, chosen, bytesMoved } of results) {
      expect(forward).toEqual(bytesMoved.forward);
      expect(backward).toEqual(bytesMoved.backward);
      expect(chosen).toEqual(results[0]!.chosen);
    }
    // The whole world, by hand.
    const { summaryDim, embedDim, numHeads } = sizes;
    const { chunksPerRank: perRank = 1, certificate = true, useCheckpoint = false, maxMissedMass } = options;
    const n = ranks * perRank;
    const gathered = summaryDim + (certificate ? embedDim + numHeads : 0) + (maxMissedMass ? n : 0);
    const lengthOf = (j: number) =>
      shardOf(shardOf(length, ranks, Math.floor(j / perRank)).rows, perRank, j % perRank).rows;
    const wanted = new Set<string>();
    for (const [b, ofBatch] of results[0]!.chosen.entries()) {
      for (const [i, chunks] of ofBatch.entries()) {
        for (const j of chunks) wanted.add(`${b} ${Math.floor(i / perRank)} ${j}`);
      }
    }
    let chunks = 0;
    for (const key of wanted) {
      const [, rank, j] = key.split(" ").map(Number) as [number, number, number];
      if (Math.floor(j / perRank) !== rank) chunks += 2 * embedDim * lengthOf(j) * 4;
    }
    const sum = (which: "forward" | "backward") => results.reduce((total, each) => total + each[which].sent, 0);
    const gather = (numbers: number) => (ranks - 1) * n * batch * numbers * 4;
    expect(sum("forward")).toBe(gather(gathered) + chunks);
    expect(sum("backward")).toBe(gather(summaryDim) + (useCheckpoint ? 2 : 1) * chunks);
  },
);

test("what a ring would move is what the ring says", async () => {
  for (const isCausal of [false, true]) {
    const [ranks, length] = [5, 43];
    const rows = layoutOf({ mesh: { sp: ranks }, axes: ["sp"], length });
    const mask = (isCausal ? causal() : full()).slices(length, length);
    const results = await onWorld(makeWorld, { size: ranks }, (ctx) =>
      counted(ctx, { options: { ...sizes, causal: isCausal }, batch: 3, length }),
    );
    for (const [sp, { bytesMoved }] of results.entries()) {
      const call = { at: { sp }, mask, queries: rows, keys: rows };
      const { forward, backward } = ringTraffic({ mesh: { sp: ranks }, call, width: 3 * 16, dtype: "float32" });
      expect(bytesMoved.ring.forward).toEqual({ sent: forward.bytesSent, received: forward.bytesReceived });
      expect(bytesMoved.ring.backward).toEqual({ sent: backward.bytesSent, received: backward.bytesReceived });
    }
  }
});

test("64 ranks, two chunks each: under 5 % of what a ring moves, by the transport's count", async () => {
  const results = await onWorld(makeWorld, { size: 64 }, (ctx) =>
    counted(ctx, { options: { ...sizes, topK: 2, combine: "exact" }, batch: 1, length: 64 * 64 }),
  );
  const sum = (of: (each: (typeof results)[number]) => number) => results.reduce((total, each) => total + of(each), 0);
  for (const pass of ["forward", "backward"] as const) {
    const share = sum((each) => each[pass].sent) / sum(({ bytesMoved }) => bytesMoved.ring[pass].sent);
    expect(share).toBeLessThan(0.05);
    expect(share).toBeGreaterThan(2 / 63 / 2);
  }
});

test("on symbolic ranks, with the choice given, the same bytes without a value", async () => {
  const { contexts } = symbolicWorld({ mesh: { sp: 64 } });
  const batch = 2;
  const rows = 1024;
  const chosen: Chosen = Array.from({ length: batch }, (_, b) =>
    Array.from({ length: 64 }, (_, i) => [(i + 7 + b) % 64, (i + 32) % 64]),
  );
  for (const combine of ["soft", "exact"] as const) {
    for (const ctx of contexts.filter(({ rank }) => rank % 9 === 0)) {
      using module = new HierarchicalMetaAttention(ctx, { ...sizes, combine });
      using x = zeros(ctx, [batch, rows, 16]);
      const before = bytesOf(ctx.world);
      using result = await module.forward(x, { chosen, dryRun: true });
      const { bytesMoved } = result.meta;
      // The symbolic group counts messages, not the gather.
      const gather = 63 * batch * (8 + 16 + 2) * 4;
      expect(minus(bytesOf(ctx.world), before).sent).toBe(bytesMoved.forward.sent - gather);
      expect(bytesMoved.forward.sent / bytesMoved.ring.forward.sent).toBeLessThan(0.04);
      using dOut = zeros(ctx, x.shape);
      result.out.backward(dOut);
      expect(minus(bytesOf(ctx.world), before).sent).toBe(
        bytesMoved.forward.sent + bytesMoved.backward.sent - gather - 63 * batch * 8 * 4,
      );
    }
  }
});
