// A small test of worlds of several hosts on which some ranks share a host. `npm run test:ucx` runs everything on every
// placement.
import { collectivesSuite, failureSuite, RankProcesses } from "@mosaic/conformance";
import { beforeAll, describe, expect, test, vi } from "vitest";
import { createJobOpener, script } from "./processes.ts";
import { twoRanksPerHost, makeWorld, openRanks, tensor } from "./ranks.ts";
import { computeDigest } from "./reductions.ts";
import { digestOverSharedMemory } from "./shared-memory.ts";

beforeAll(() => {
  vi.stubEnv("UCX_TLS", "tcp");
  return () => vi.unstubAllEnvs();
});

const makeUcxWorld = makeWorld({ network: "lo" }, twoRanksPerHost);
const suite = collectivesSuite(makeUcxWorld, { sizes: [3] });
test.each(suite.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run());

// Run concurrently, because the tests wait most of the time.
const failures = failureSuite(makeUcxWorld);
test.concurrent.each(failures.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run());

test("reductions of the world and of one host's ranks give the same bits as over shared memory", async () => {
  await using ranks = await openRanks(5, { ucx: { network: "lo" }, hosts: [0, 1, 0, 1, 0] });
  const worldDigests = await Promise.all(ranks.groups.map(computeDigest));
  expect(new Set(worldDigests)).toEqual(new Set([await digestOverSharedMemory(5)]));
  const hosts = await Promise.all(ranks.groups.map((group) => group.split(group.rank % 2, "host")));
  const hostDigests = await Promise.all(hosts.map(computeDigest));
  const [threeRankDigest, twoRankDigest] = [await digestOverSharedMemory(3), await digestOverSharedMemory(2)];
  expect(hostDigests).toEqual([threeRankDigest, twoRankDigest, threeRankDigest, twoRankDigest, threeRankDigest]);
});

test("an all-reduce sends each reduced shard once to each other host", async () => {
  const hosts = [0, 0, 0, 1];
  await using ranks = await openRanks(hosts.length, { ucx: { network: "lo" }, hosts });
  const bytes = 4 << 20;
  const shardBytes = bytes / hosts.length;
  const xs = ranks.devices.map((device, rank) => tensor(device, new Float32Array(bytes / 4).fill(rank), [bytes / 4]));
  ranks.groups.forEach((group, rank) => group.allReduce(xs[rank]!).wait());
  for (const x of xs) expect((await x.read()).every((value) => value === 6)).toBe(true);
  const sentShards = ranks.groups.map((group) => group.traffic().bytesSent / shardBytes);
  // Each rank sends three shares to be reduced. Then rank 3 sends its reduced share to rank 0 only, which forwards it
  // to the two other ranks. The reduced shares of ranks 0 to 2 are sent to all.
  expect(sentShards).toEqual([3 + 3 + 2, 3 + 3, 3 + 3, 3 + 1]);
});

test("a broadcast sends its tensor once to each other host, whose ranks forward parts of it", async () => {
  const hosts = [0, 1, 2, 1, 1];
  await using ranks = await openRanks(hosts.length, { ucx: { network: "lo" }, hosts });
  const count = 3 * 40_000;
  const [values, zeros] = [Float32Array.from({ length: count }, (_, i) => i), new Float32Array(count)];
  const xs = ranks.devices.map((device, rank) => tensor(device, rank === 2 ? values : zeros, [count]));
  ranks.groups.forEach((group, rank) => group.broadcast(xs[rank]!, 2).wait());
  for (const x of xs) expect(await x.read()).toEqual(values);
  const sentTensors = ranks.groups.map((group) => group.traffic().bytesSent / (4 * count));
  // Rank 2 sends the tensor to rank 0, and a third of it to each of ranks 1, 3 and 4, which send that to the other two.
  expect(sentTensors).toEqual([0, 2 / 3, 2, 2 / 3, 2 / 3]);
});

test("a rank of another host that does not call a broadcast is named when the others time out", async () => {
  await using ranks = await openRanks(4, { ucx: { network: "lo" }, hosts: [0, 0, 1, 1], timeout: 1 });
  const xs = ranks.devices.map((device) => tensor(device, [7], [1]));
  // Rank 2 forwards to rank 3.
  for (const rank of [0, 1, 3]) ranks.groups[rank]!.broadcast(xs[rank]!, 0);
  await expect(ranks.groups[3]!.split(0)).rejects.toThrow(
    /timed out after 1 s: rank 3 waits in broadcast #1 \(world\).*rank 2 is in no collective/,
  );
});

test("an all-reduce includes a rank that shares its host with no other rank", async () => {
  await using ranks = await openRanks(3, { ucx: { network: "lo" }, hosts: [0, 0, 1] });
  const xs = ranks.devices.map((device, rank) => tensor(device, [rank + 1], [1]));
  ranks.groups.forEach((group, rank) => group.allReduce(xs[rank]!).wait());
  for (const x of xs) expect(Array.from(await x.read())).toEqual([6]);
});

test("a world works after another world has failed", async () => {
  const count = 1 << 20;
  const hosts = [0, 0, 1, 1];
  await using failedRanks = await openRanks(4, { ucx: { network: "lo" }, hosts, timeout: 1 });
  const xs = failedRanks.devices.map((device) => tensor(device, new Float32Array(count).fill(7), [count]));
  // Rank 3, which is on another host than rank 0, never calls the collective.
  for (const rank of [0, 1, 2]) failedRanks.groups[rank]!.allReduce(xs[rank]!);
  await expect(failedRanks.groups[0]!.split(0)).rejects.toThrow(/timed out after 1 s|exited/);
  await using ranks = await openRanks(4, { ucx: { network: "lo" }, hosts });
  const ys = ranks.devices.map((device, rank) => tensor(device, new Float32Array(count).fill(rank), [count]));
  ranks.groups.forEach((group, rank) => group.allReduce(ys[rank]!).wait());
  for (const y of ys) expect((await y.read())[count - 1]).toBe(6);
});

test.each([[[0]], [[0, 1, 2]], [[0, -1]], [[0, 2]], [[0, 0.5]]])(
  "world() rejects hosts %j for two ranks",
  async (hosts) => {
    await expect(openRanks(2, { hosts })).rejects.toThrow("world: hosts: expected 2 host indices from 0 to 1");
  },
);

test.each([3, "ab", {}, [null, 0]])("world() rejects hosts %j, which only untyped code can pass", async (hosts) => {
  await expect(openRanks(2, { hosts: hosts as never })).rejects.toThrow("world: hosts: expected 2 host indices");
});

describe("processes", () => {
  const program = { script, openJob: createJobOpener(twoRanksPerHost) };

  // Retried, because a busy machine may delay the wake-up.
  test("ranks of the same host and of others wake a sleeping rank within 80 ms", { retry: 2 }, async () => {
    await using processes = new RankProcesses(program);
    const ranks = await processes.startAll(3, "answers");
    const { longest } = await ranks[0]!.waitForEvent("answered");
    expect(longest).toHaveLength(2);
    // Without a wake-up, a sleep ends only after 100 ms.
    for (const ms of longest as number[]) expect(ms).toBeLessThan(80);
  });

  test.each([0, 1, 2])("report the death of rank %i during a transfer, with its host", async (killedRank) => {
    await using processes = new RankProcesses(program);
    const ranks = await processes.startAll(3, "streams");
    await Promise.all(ranks.map((rank) => rank.waitForEvent("streaming")));
    process.kill(ranks[killedRank]!.pid, "SIGKILL");
    for (const rank of ranks.filter((_, index) => index !== killedRank)) {
      const { name, message } = await rank.waitForEvent("failed");
      expect(name).toBe("PeerLostError");
      const host = twoRanksPerHost(killedRank);
      expect(message).toContain(`rank ${killedRank} (pid ${ranks[killedRank]!.pid} on n${host}) died`);
      expect(await rank.exitStatus).toBe(0);
    }
  });
});
