import fc from "fast-check";
import type { Transfer } from "@mosaic/core";
import { expect, test } from "vitest";
import { openRanks } from "./ranks.ts";
import { expectSame, nanFilled, tensor, rankValues } from "./values.ts";

interface Planned {
  readonly from: number;
  readonly to: number;
  readonly count: number;
}

const plan = (size: number): fc.Arbitrary<Planned[]> =>
  fc.array(
    fc.record({
      from: fc.nat(size - 1),
      to: fc.nat(size - 1),
      count: fc.oneof(fc.constant(0), fc.nat(20), fc.nat(70_000)),
    }),
    { maxLength: 3 * size },
  );

/** Mixes sends and receives of different peers; those between the same two ranks keep their order. */
function shuffled(transfers: readonly Transfer[], seed: number): Transfer[] {
  const lanes = new Map<string, Transfer[]>();
  for (const each of transfers) {
    const lane = "to" in each ? `to ${each.to}` : `from ${each.from}`;
    lanes.set(lane, [...(lanes.get(lane) ?? []), each]);
  }
  const result: Transfer[] = [];
  const open = [...lanes.values()];
  for (let state = seed; open.length > 0; state = (state * 1103515245 + 12345) % 2 ** 31) {
    const pick = state % open.length;
    result.push(open[pick]!.shift()!);
    if (open[pick]!.length === 0) open.splice(pick, 1);
  }
  return result;
}

test("any batch of messages arrives, in any order of posting, whatever was there before", async () => {
  const arbitrary = fc.integer({ min: 1, max: 8 }).chain((size) =>
    fc.record({
      size: fc.constant(size),
      batches: fc.array(plan(size), { minLength: 1, maxLength: 3 }),
      seed: fc.nat(),
    }),
  );
  await fc.assert(
    fc.asyncProperty(arbitrary, async ({ size, batches, seed }) => {
      await using ranks = await openRanks(size);
      const arrivals: { out: { read(): Promise<Float32Array> }; expected: Float32Array }[] = [];
      for (const batch of batches) {
        const posts: Transfer[][] = ranks.groups.map(() => []);
        for (const [i, { from, to, count }] of batch.entries()) {
          const out = nanFilled(ranks.devices[to]!, [count]);
          posts[from]!.push({ tensor: tensor(ranks.devices[from]!, rankValues(from + i, count), [count]), to });
          posts[to]!.push({ tensor: out, from });
          arrivals.push({ out, expected: rankValues(from + i, count) });
        }
        ranks.groups.forEach((group, rank) => group.sendRecv(shuffled(posts[rank]!, seed + rank)).wait());
      }
      for (const { out, expected } of arrivals) expectSame(await out.read(), expected);
    }),
    { numRuns: 30 },
  );
});

test("a ring that rotates two tensors of different dtypes, and counts exactly what it sends", async () => {
  const size = 5;
  await using ranks = await openRanks(size);
  const before = ranks.groups.map((group) => group.traffic());
  let held = ranks.devices.map((device, rank) => ({
    k: tensor(device, rankValues(rank, 999), [3, 333]),
    v: tensor(device, rankValues(rank + 50, 77), [7, 11], "bfloat16"),
  }));
  for (let step = 1; step < size; step++) {
    held = ranks.groups.map((group, rank) => {
      const [to, from] = [(rank + 1) % size, (rank + size - 1) % size];
      const next = {
        k: nanFilled(ranks.devices[rank]!, [3, 333]),
        v: nanFilled(ranks.devices[rank]!, [7, 11], "bfloat16"),
      };
      const { k, v } = held[rank]!;
      group
        .sendRecv([
          { tensor: k, to },
          { tensor: v, to },
          { tensor: next.k, from },
          { tensor: next.v, from },
        ])
        .wait();
      return next;
    });
    for (const [rank, { k, v }] of held.entries()) {
      const source = (rank + size - step) % size;
      expectSame(await k.read(), rankValues(source, 999));
      expectSame(await v.read(), rankValues(source + 50, 77));
    }
  }
  for (const [rank, group] of ranks.groups.entries()) {
    const { bytesSent, bytesReceived, messagesSent } = group.traffic();
    expect(bytesSent - before[rank]!.bytesSent).toBe((size - 1) * (999 * 4 + 77 * 2));
    expect(bytesReceived - before[rank]!.bytesReceived).toBe((size - 1) * (999 * 4 + 77 * 2));
    expect(messagesSent - before[rank]!.messagesSent).toBe(2 * (size - 1));
  }
});
