import { processSuite, RankProcesses } from "@mosaic/conformance";
import { describe, expect, test } from "vitest";
import { createJobOpener, script } from "./processes.ts";
import { oneHostPerRank, twoRanksPerHost, alternatingHosts, type HostOf } from "./ranks.ts";
import { digestOverSharedMemory } from "./shared-memory.ts";

const placements: readonly [name: string, hostOf: HostOf][] = [
  ["each on a separate host", oneHostPerRank],
  ["two per host", twoRanksPerHost],
  ["alternating between two hosts", alternatingHosts],
];

describe.each(placements)("processes %s", (_, hostOf) => {
  const program = { script, openJob: createJobOpener(hostOf) };
  const suite = processSuite({ ...program, sizes: [3] });

  test.each(suite.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run());

  test.each([2, 3, 5])("%i processes reduce to the same bits as ranks that share memory", async (size) => {
    await using processes = new RankProcesses(program);
    const ranks = await processes.startAll(size, "reduce");
    const digests = await Promise.all(ranks.map(async (rank) => (await rank.waitForEvent("reduced")).digest));
    const expected = await digestOverSharedMemory(size);
    expect(digests).toEqual(digests.map(() => expected));
    expect(await Promise.all(ranks.map((rank) => rank.exitStatus))).toEqual(ranks.map(() => 0));
  });

  test.each([2, 3, 5])("%i processes exchange messages of all sizes at once", async (size) => {
    await using processes = new RankProcesses(program);
    const ranks = await processes.startAll(size, "exchanges");
    for (const rank of ranks) {
      const { hashes, expected } = await rank.waitForEvent("exchanged");
      expect(hashes).toEqual(expected);
    }
  });

  test("a rank that waits uses less than a hundredth of a core", async () => {
    await using processes = new RankProcesses(program);
    const ranks = await processes.startAll(3, "idles");
    await Promise.all(ranks.map((rank) => rank.waitForEvent("ready")));
    const deadline = performance.now() + 3000;
    while (performance.now() < deadline)
      await new Promise((resolve) => setTimeout(resolve, deadline - performance.now()));
    ranks[0]!.proceed();
    for (const rank of ranks.slice(1)) {
      const { share, ms } = await rank.waitForEvent("waited");
      expect(ms).toBeGreaterThan(2900);
      expect(share).toBeLessThan(0.01);
    }
  });

  // Retried, because a busy machine may delay the wake-up.
  test("ranks of the same host and of others wake a sleeping rank within 80 ms", { retry: 2 }, async () => {
    await using processes = new RankProcesses(program);
    const ranks = await processes.startAll(4, "answers");
    const { longest } = await ranks[0]!.waitForEvent("answered");
    expect(longest).toHaveLength(3);
    // Without a wake-up, a sleep ends only after 100 ms.
    for (const ms of longest as number[]) expect(ms).toBeLessThan(80);
  });
});
