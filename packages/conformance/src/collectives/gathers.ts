import type { DType, ProcessGroup } from "@mosaic/core";
import type { Case } from "../case.ts";
import { concatenated } from "../backend/shard.ts";
import type { MakeWorld } from "../world.ts";
import { checkHolds, dtypes, everyone, inbox, onRanks, shares, tensorOf, total, valuesOf } from "./ranks.ts";

/** allGather, allToAll and broadcast: equal shares and given ones. */
export function gatherCases(makeWorld: MakeWorld, size: number): Case[] {
  const collectives = { allGather, allToAll, broadcast };
  return dtypes.flatMap((dtype) =>
    Object.entries(collectives).map(([name, body]) => ({
      name: `${name}, ${dtype}, ${size} ranks`,
      run: () => onRanks(makeWorld, size, (ctx) => body(ctx.world, dtype)),
    })),
  );
}

async function allGather(group: ProcessGroup, dtype: DType): Promise<void> {
  const equal = everyone(group).map(() => 129);
  for (const counts of [equal, shares(group.size)]) {
    const inputs = counts.map((count, rank) => valuesOf(rank, count, dtype));
    using input = tensorOf(group, inputs[group.rank]!, { dtype });
    using out = inbox(group, total(counts), dtype);
    group.allGather(out, input, counts === equal ? undefined : { counts }).wait();
    await checkHolds(out, concatenated(inputs), `shares ${counts.join()} on rank ${group.rank}`);
  }
}

async function allToAll(group: ProcessGroup, dtype: DType): Promise<void> {
  const { rank, size } = group;
  const equal = (): number => 11;
  const uneven = (from: number, to: number): number => (from + 2 * to) % 4;
  for (const count of [equal, uneven]) {
    const sent = (from: number) => everyone(group).map((to) => count(from, to));
    const row = (from: number) => valuesOf(from, total(sent(from)), dtype);
    const part = (from: number, to: number) => {
      const start = total(sent(from).slice(0, to));
      return row(from).subarray(start, start + count(from, to));
    };
    const received = everyone(group).map((from) => count(from, rank));
    using input = tensorOf(group, row(rank), { dtype });
    using out = inbox(group, total(received), dtype);
    group.allToAll(out, input, count === equal ? undefined : { send: sent(rank), receive: received }).wait();
    await checkHolds(out, concatenated(everyone(group).map((from) => part(from, rank))), `rank ${rank} of ${size}`);
  }
}

async function broadcast(group: ProcessGroup, dtype: DType): Promise<void> {
  for (const root of everyone(group)) {
    for (const length of [0, 1, 3001]) {
      using x =
        group.rank === root ? tensorOf(group, valuesOf(root, length, dtype), { dtype }) : inbox(group, length, dtype);
      group.broadcast(x, root).wait();
      await checkHolds(x, valuesOf(root, length, dtype), `${length} numbers from ${root} on ${group.rank}`);
    }
  }
}
