import { expect, test } from "vitest";
import { openRanks, tensor } from "./ranks.ts";

// NCCL compares minCTAs and maxCTAs even if one of them is undefined.
test.each([{ minCtas: 8 }, { maxCtas: 8 }, { minCtas: 8, maxCtas: 8 }])(
  "NCCL accepts the options %j, also for split groups",
  async (nccl) => {
    await using ranks = await openRanks(2, { nccl });
    const splitGroups = await Promise.all(ranks.groups.map((group) => group.split(0)));
    const xs = ranks.devices.map((device, rank) => tensor(device, [rank], [1]));
    splitGroups.forEach((splitGroup, rank) => splitGroup?.allReduce(xs[rank]!).wait());
    for (const x of xs) expect(Array.from(await x.read())).toEqual([1]);
  },
);
