import { cuda } from "@mosaic/kernels-cuda";
import { expect, test } from "vitest";
import { nccl } from "../src/index.ts";
import { openRanks, tensor } from "./ranks.ts";

test("a world sets variables of NCCL and CUDA for one thread with several GPUs, and keeps the user's values", async () => {
  for (const name of ["NCCL_RUNTIME_CONNECT", "NCCL_P2P_DIRECT_DISABLE", "CUDA_MODULE_LOADING"])
    delete process.env[name];
  process.env.NCCL_RUNTIME_CONNECT = "1";
  await using ranks = await openRanks(2);
  expect(ranks.groups).toHaveLength(2);
  const { NCCL_RUNTIME_CONNECT, NCCL_P2P_DIRECT_DISABLE, CUDA_MODULE_LOADING } = process.env;
  expect({ NCCL_RUNTIME_CONNECT, NCCL_P2P_DIRECT_DISABLE, CUDA_MODULE_LOADING }).toEqual({
    NCCL_RUNTIME_CONNECT: "1", // a value that the user has set is kept
    NCCL_P2P_DIRECT_DISABLE: "1",
    CUDA_MODULE_LOADING: "EAGER",
  });
});

test.each([
  [true, "0"],
  [false, undefined],
])("the option warmUp: %j determines whether NCCL connects when it starts", async (warmUp, expected) => {
  delete process.env.NCCL_RUNTIME_CONNECT;
  using device = cuda({ index: 0 });
  await using group = await nccl({ warmUp }).connect({ device, rank: 0, size: 1 });
  expect(group.size).toBe(1);
  expect(process.env.NCCL_RUNTIME_CONNECT).toBe(expected);
});

test("a wait is rejected until all ranks of this thread have called the preceding split", async () => {
  await using ranks = await openRanks(2, { timeout: 5 });
  const [a, b] = ranks.devices.map((device, rank) => tensor(device, [rank + 1], [1]));
  const [firstGroup, secondGroup] = ranks.groups;
  const splitPromises = [firstGroup!.split(0)];
  const work = firstGroup!.allReduce(a!, "sum", { label: "step" });
  expect(() => work.wait()).toThrow(
    "rank 0: wait: cannot enqueue an operation after split #1 (world) before all ranks of this thread have called the split; await the split on all ranks first",
  );
  splitPromises.push(secondGroup!.split(0));
  // Now all ranks have called the split, so a wait cannot deadlock.
  secondGroup!.allReduce(b!).wait();
  expect((await Promise.all(splitPromises)).map(({ ranks: members }) => members)).toEqual([
    [0, 1],
    [0, 1],
  ]);
  work.wait();
  expect([...(await a!.read()), ...(await b!.read())]).toEqual([3, 3]);
});

test("a trace has the GPU time of each operation, on the clock of the host", async () => {
  await using ranks = await openRanks(2);
  const xs = ranks.devices.map((device, rank) => tensor(device, [rank, rank, rank], [3]));
  const timeBefore = Number(process.hrtime.bigint());
  for (const group of ranks.groups) group.startTrace();
  for (const label of ["step 1", "step 2"]) {
    ranks.groups.forEach((group, rank) => group.allReduce(xs[rank]!, "sum", { label }).wait());
  }
  for (const group of ranks.groups) {
    const events = await group.stopTrace();
    const timeAfter = Number(process.hrtime.bigint());
    expect(events.map(({ name, label, lane }) => [name, label, lane])).toEqual([
      ["allReduce", "step 1", "communication"],
      ["allReduce", "step 2", "communication"],
    ]);
    const times = events.flatMap(({ start, end }) => [start, end]);
    expect(times.toSorted((a, b) => a - b)).toEqual(times);
    expect(times[0]).toBeGreaterThan(timeBefore);
    expect(times.at(-1)).toBeLessThan(timeAfter);
    for (const event of events) expect(event).toMatchObject({ bytesSent: 12, bytesReceived: 12 });
  }
});
