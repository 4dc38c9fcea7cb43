import { processSuite, RankProcesses } from "@mosaic/conformance";
import { describe, expect, test } from "vitest";
import { openJob, script } from "./processes.ts";
import { digestOverSharedMemory } from "./shared-memory.ts";

const program = { script, openJob };
const suite = processSuite({ ...program, withoutRankZero: /no agent listens at .*mosaic-run/ });

test.each(suite.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run());

describe.each([2, 3, 5])("%i processes", (size) => {
  test("reduce to the same bits as ranks that share memory", async () => {
    await using processes = new RankProcesses(program);
    const ranks = await processes.startAll(size, "reduce");
    const digests = await Promise.all(ranks.map(async (rank) => (await rank.waitForEvent("reduced")).digest));
    const expected = await digestOverSharedMemory(size);
    expect(digests).toEqual(digests.map(() => expected));
    expect(await Promise.all(ranks.map((rank) => rank.ended))).toEqual(ranks.map(() => 0));
  });

  test("exchange messages of all sizes at once", async () => {
    await using processes = new RankProcesses(program);
    const ranks = await processes.startAll(size, "exchanges");
    for (const rank of ranks) {
      const { hashes, expected } = await rank.waitForEvent("exchanged");
      expect(hashes).toEqual(expected);
    }
  });
});

test("a rank that waits uses less than a hundredth of a core", async () => {
  await using processes = new RankProcesses(program);
  const ranks = await processes.startAll(2, "idles");
  await Promise.all(ranks.map((rank) => rank.waitForEvent("ready")));
  const limit = performance.now() + 3000;
  while (performance.now() < limit) await new Promise((resolve) => setTimeout(resolve, limit - performance.now()));
  ranks[0]!.proceed();
  const { share, ms } = await ranks[1]!.waitForEvent("waited");
  expect(ms).toBeGreaterThan(2900);
  expect(share).toBeLessThan(0.01);
});
