import { expect, test } from "vitest";
import { openRanks, tensor } from "./ranks.ts";

test("a tensor in flight cannot be used before wait(); the rest of its memory can be used", async () => {
  await using ranks = await openRanks(2);
  const xs = ranks.devices.map((device, rank) => tensor(device, [1, 2, 3 + rank, 4 + rank], [2, 2]));
  const works = ranks.groups.map((group, rank) => group.allReduce(xs[rank]!.slice(0, 1, 2)));
  const inFlight = "received [2,2], which allReduce #1 (world) is writing; call wait() of its Work first";
  expect(() => xs[0]!.mul(1)).toThrow(inFlight);
  await expect(xs[0]!.read()).rejects.toThrow(inFlight);
  expect(() => ranks.devices[0]!.write(xs[0]!, [1, 2, 3, 4])).toThrow(inFlight);
  expect([...(await xs[0]!.slice(0, 0, 1).mul(2).read())]).toEqual([2, 4]);
  for (const work of works) work.wait();
  expect([...(await xs[0]!.mul(1).read())]).toEqual([1, 2, 7, 9]);
});

test("wait() of a later operation orders an earlier one, also of another group", async () => {
  await using ranks = await openRanks(2);
  const groups = await Promise.all(ranks.groups.map((group) => group.split(0, "all")));
  const xs = ranks.devices.map((device, rank) => tensor(device, [rank + 1], [1]));
  ranks.groups.forEach((group, rank) => group.allReduce(xs[rank]!));
  expect(() => xs[1]!.mul(1)).toThrow("received [1], which allReduce #2 (world) is writing");
  const [sent, received] = [1, 2].map((value) => ranks.devices.map((device) => tensor(device, [value], [1])));
  const works = groups.map((group, rank) =>
    group.sendRecv([
      { tensor: sent![rank]!, to: 1 - rank },
      { tensor: received![rank]!, from: 1 - rank },
    ]),
  );
  expect(() => ranks.devices[0]!.write(sent![0]!, [5])).toThrow("received [1], which sendRecv #1 (all) is reading");
  for (const work of works) work.wait();
  expect([...(await xs[1]!.mul(1).read()), ...(await received![0]!.read())]).toEqual([3, 1]);
});
