import { readFileSync } from "node:fs";
import { setImmediate } from "node:timers/promises";
import { processSuite, RankProcesses } from "@mosaic/conformance";
import { afterEach, describe, expect, test } from "vitest";
import { names, openJob, script } from "./processes.ts";

const sockets = (): string => readFileSync("/proc/net/unix", "utf8");

// Nothing has a name that could stay behind.
afterEach(() => {
  const left = sockets();
  for (const name of names) expect(left).not.toContain(name);
});

const program = { script, openJob };
const suite = processSuite({ ...program, withoutRankZero: /rank 0 did not come.*MASTER_PORT/ });

test.each(suite.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run());

describe.each([2, 3, 5, 8])("%i processes", (size) => {
  test("compute the same, and leave no descriptor behind", async () => {
    await using processes = new RankProcesses(program);
    const ranks = await processes.startAll(size, "work");
    const worked = await Promise.all(ranks.map((rank) => rank.said("worked")));
    expect(worked.map(({ half, sum }) => [half, sum])).toEqual(
      worked.map((_, rank) => {
        const half = Math.floor((size + 1 - (rank % 2)) / 2);
        return [half, half];
      }),
    );
    for (const { files } of worked) expect(files).not.toContainEqual(expect.stringMatching(/memfd|shm/));
    const left = await Promise.all(ranks.map((rank) => rank.said("left")));
    expect(left.map(({ leaked }) => leaked)).toEqual(left.map(() => 0));
    expect(await Promise.all(ranks.map((rank) => rank.ended))).toEqual(ranks.map(() => 0));
  });
});

test("the name that ranks meet by goes with whoever waits there", async () => {
  await using processes = new RankProcesses(program);
  const job = await processes.openJob(2);
  const rank = processes.start("work", job.env(0));
  while (!sockets().includes(names.at(-1)!)) await setImmediate();
  rank.kill();
  expect(await rank.ended).toBe("SIGKILL");
});

test("a rank whose patience ends first waits for rank 0 to say who is missing", async () => {
  await using processes = new RankProcesses(program);
  const job = await processes.openJob(3);
  const patience = { MOSAIC_TEST_PATIENCE: "3" };
  const early = processes.start("work", { ...job.env(1), ...patience });
  await early.said("connecting");
  const host = processes.start("work", { ...job.env(0), ...patience });
  for (const rank of [early, host]) {
    expect((await rank.said("failed")).message).toMatch(/rank 2 of 3 did not come within 3 s/);
  }
});

test("ranks of several hosts are refused", async () => {
  await using processes = new RankProcesses(program);
  const job = await processes.openJob(2);
  const rank = processes.start("work", { ...job.env(0), LOCAL_WORLD_SIZE: "1" });
  expect((await rank.said("failed")).message).toMatch(/LOCAL_WORLD_SIZE 1 of 2 ranks.*span hosts/);
  expect(await rank.ended).toBe(0);
});
