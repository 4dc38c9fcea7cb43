import { full } from "@mosaic/core";
import { expect, test } from "vitest";
import { openRanks } from "./ranks.ts";

// NCCL may deadlock if a communicator is split while the GPU still executes one of its operations.
test("a split waits for operations that were posted before it", async () => {
  await using ranks = await openRanks(2);
  const xs = ranks.contexts.map((context) => full(context, [1 << 22], 1));
  ranks.groups.forEach((group, rank) => group.allReduce(xs[rank]!).wait());
  const splitGroups = await Promise.all(ranks.groups.map((group) => group.split(0)));
  expect(splitGroups.map((splitGroup) => splitGroup?.size)).toEqual([2, 2]);
  for (const x of xs) expect((await x.read())[0]).toBe(2);
});
