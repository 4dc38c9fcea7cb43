import fc from "fast-check";
import type { Transfer } from "@mosaic/core";
import { expect, test } from "vitest";
import { openRanks } from "./ranks.ts";
import { expectSame, nanFilled, tensor, rankValues } from "./values.ts";

interface PlannedTransfer {
  readonly source: number;
  readonly destination: number;
  readonly count: number;
}

const plan = (size: number): fc.Arbitrary<PlannedTransfer[]> =>
  fc.array(
    fc.record({
      source: fc.nat(size - 1),
      destination: fc.nat(size - 1),
      count: fc.oneof(fc.constant(0), fc.nat(20), fc.nat(70_000)),
    }),
    { maxLength: 3 * size },
  );

/** Interleaves sends and receives of different peers at random. Those between the same two ranks keep their order. */
function shuffleLanes(transfers: readonly Transfer[], seed: number): Transfer[] {
  const lanes = new Map<string, Transfer[]>();
  for (const transfer of transfers) {
    const lane = "to" in transfer ? `to ${transfer.to}` : `from ${transfer.from}`;
    lanes.set(lane, [...(lanes.get(lane) ?? []), transfer]);
  }
  const result: Transfer[] = [];
  const pendingLanes = [...lanes.values()];
  for (let state = seed; pendingLanes.length > 0; state = (state * 1103515245 + 12345) % 2 ** 31) {
    const laneIndex = state % pendingLanes.length;
    result.push(pendingLanes[laneIndex]!.shift()!);
    if (pendingLanes[laneIndex]!.length === 0) pendingLanes.splice(laneIndex, 1);
  }
  return result;
}

test("messages of random batches arrive unchanged, whatever the order in which they are posted", async () => {
  const arbitraryBatches = fc.integer({ min: 1, max: 8 }).chain((size) =>
    fc.record({
      size: fc.constant(size),
      batches: fc.array(plan(size), { minLength: 1, maxLength: 3 }),
      seed: fc.nat(),
    }),
  );
  await fc.assert(
    fc.asyncProperty(arbitraryBatches, async ({ size, batches, seed }) => {
      await using ranks = await openRanks(size);
      const expectedArrivals: { out: { read(): Promise<Float32Array> }; expected: Float32Array }[] = [];
      for (const batch of batches) {
        const transfersByRank: Transfer[][] = ranks.groups.map(() => []);
        for (const [i, { source: from, destination: to, count }] of batch.entries()) {
          const out = nanFilled(ranks.devices[to]!, [count]);
          transfersByRank[from]!.push({
            tensor: tensor(ranks.devices[from]!, rankValues(from + i, count), [count]),
            to,
          });
          transfersByRank[to]!.push({ tensor: out, from });
          expectedArrivals.push({ out, expected: rankValues(from + i, count) });
        }
        ranks.groups.forEach((group, rank) => group.sendRecv(shuffleLanes(transfersByRank[rank]!, seed + rank)).wait());
      }
      for (const { out, expected } of expectedArrivals) expectSame(await out.read(), expected);
    }),
    { numRuns: 30 },
  );
});

test("a ring rotates two tensors of different dtypes, and counts its bytes and messages exactly", async () => {
  const size = 5;
  await using ranks = await openRanks(size);
  const trafficBefore = ranks.groups.map((group) => group.traffic());
  let heldTensors = ranks.devices.map((device, rank) => ({
    k: tensor(device, rankValues(rank, 999), [3, 333]),
    v: tensor(device, rankValues(rank + 50, 77), [7, 11], "bfloat16"),
  }));
  for (let step = 1; step < size; step++) {
    heldTensors = ranks.groups.map((group, rank) => {
      const [nextRank, previousRank] = [(rank + 1) % size, (rank + size - 1) % size];
      const nextTransfers = {
        k: nanFilled(ranks.devices[rank]!, [3, 333]),
        v: nanFilled(ranks.devices[rank]!, [7, 11], "bfloat16"),
      };
      const { k, v } = heldTensors[rank]!;
      group
        .sendRecv([
          { tensor: k, to: nextRank },
          { tensor: v, to: nextRank },
          { tensor: nextTransfers.k, from: previousRank },
          { tensor: nextTransfers.v, from: previousRank },
        ])
        .wait();
      return nextTransfers;
    });
    for (const [rank, { k, v }] of heldTensors.entries()) {
      const source = (rank + size - step) % size;
      expectSame(await k.read(), rankValues(source, 999));
      expectSame(await v.read(), rankValues(source + 50, 77));
    }
  }
  for (const [rank, group] of ranks.groups.entries()) {
    const { bytesSent, bytesReceived, messagesSent } = group.traffic();
    expect(bytesSent - trafficBefore[rank]!.bytesSent).toBe((size - 1) * (999 * 4 + 77 * 2));
    expect(bytesReceived - trafficBefore[rank]!.bytesReceived).toBe((size - 1) * (999 * 4 + 77 * 2));
    expect(messagesSent - trafficBefore[rank]!.messagesSent).toBe(2 * (size - 1));
  }
});
