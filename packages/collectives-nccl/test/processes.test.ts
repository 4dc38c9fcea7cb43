import type { RankProcess } from "@mosaic/conformance";
import { afterEach, expect, test } from "vitest";
import { type Job, openJob, startRank } from "./processes.ts";

const started: (RankProcess | Job)[] = [];

afterEach(async () => {
  for (const each of started.splice(0)) {
    if ("kill" in each) {
      each.kill();
      await each.ended;
    } else {
      await each[Symbol.asyncDispose]();
    }
  }
});

async function startRanks(
  size: number,
  scenario: string,
  more: Readonly<Record<string, string>> = {},
): Promise<RankProcess[]> {
  const job = await openJob(size, more);
  const ranks = Array.from({ length: size }, (_, rank) => startRank(scenario, job.env(rank)));
  started.push(...ranks, job);
  return ranks;
}

test.each([2, 3])("%i processes: every collective, every promise of order", async (size) => {
  const ranks = await startRanks(size, "conform");
  for (const rank of ranks) expect((await rank.said("conformed")).cases).toBeGreaterThan(40);
  for (const rank of ranks) await rank.said("closed");
  expect(await Promise.all(ranks.map((rank) => rank.ended))).toEqual(ranks.map(() => 0));
});

test("groups along the axes of a mesh, and a trace in their GPU's time", async () => {
  const before = Number(process.hrtime.bigint());
  const ranks = await startRanks(4, "groups");
  for (const [rank, process] of ranks.entries()) {
    const { sum, ranks: members, trace } = await process.said("grouped");
    expect(members).toEqual(rank < 2 ? [0, 1] : [2, 3]);
    expect(sum).toBe(rank < 2 ? 1 : 5);
    const [event] = trace as {
      lane: string;
      name: string;
      label: string;
      start: number;
      end: number;
      bytesSent: number;
    }[];
    expect(event).toMatchObject({ lane: "communication", name: "allReduce", label: "step 1", bytesSent: 12 });
    expect(event!.start).toBeGreaterThan(before);
    expect(event!.end).toBeGreaterThan(event!.start);
  }
});

/** Starts three ranks, lets rank 1 do its worst, and gives what the others say, and how soon. */
async function disaster(scenario: string, more: Readonly<Record<string, string>> = {}) {
  const ranks = await startRanks(3, scenario, { ODD: "1", ...more });
  const [, odd] = await Promise.all(ranks.map((rank) => rank.said("ready")));
  const begun = performance.now();
  ranks[1]!.tell();
  const failures = await Promise.all([ranks[0]!, ranks[2]!].map((rank) => rank.said("failed")));
  return { failures, pid: odd!.pid, seconds: (performance.now() - begun) / 1000, ranks };
}

test("a rank that is killed is named at once, and everybody ends", async () => {
  const { failures, pid, seconds, ranks } = await disaster("killed");
  for (const { name, message } of failures) {
    expect(name).toBe("PeerLostError");
    expect(message).toMatch(/^step 3: rank 1 \(pid \d+\) died; rank [02] needed it in allReduce #2 \(world\)$/);
    expect(message).toContain(`pid ${pid}`);
  }
  expect(seconds).toBeLessThan(5);
  expect(await Promise.all(ranks.map((rank) => rank.ended))).toEqual([0, "SIGKILL", 0]);
});

test("rank 0, where all meet, that is killed", async () => {
  const ranks = await startRanks(3, "killed", { ODD: "0" });
  await Promise.all(ranks.map((rank) => rank.said("ready")));
  ranks[0]!.tell();
  for (const rank of ranks.slice(1)) {
    const { name, message } = await rank.said("failed");
    expect(name).toBe("PeerLostError");
    expect(message).toMatch(/^step 3: rank 0 \(pid \d+\) died; rank [12] needed it in allReduce #2 \(world\)$/);
  }
});

test.each(["exits", "leaves"])("a rank that %s early is named", async (scenario) => {
  const { failures, ranks } = await disaster(scenario);
  for (const { name, message } of failures) {
    expect(name).toBe("PeerLostError");
    expect(message).toMatch(
      /rank 1 (left after barrier #1 \(world\)|\(pid \d+\) died); rank [02] needed it in allReduce #2/,
    );
  }
  expect(await ranks[1]!.ended).toBe(0);
});

test("a rank that is late beyond the deadline: each rank's position", async () => {
  const { failures } = await disaster("late", { LIMIT: "1" });
  for (const { name, message } of failures) {
    expect(name).toBe("CollectiveTimeoutError");
    expect(message).toMatch(/no end within 1 s: rank [02] waits in allReduce #2 \(world\)/);
    expect(message).toContain("rank 1 has called nothing since barrier #1 (world)");
  }
});

test("shapes that differ between processes", async () => {
  const ranks = await startRanks(3, "shapes", { ODD: "1" });
  for (const { name, message } of await Promise.all(ranks.map((rank) => rank.said("failed")))) {
    expect(name).toBe("CollectiveMismatchError");
    expect(message).toContain("float32 [2,4]");
    expect(message).toContain("float32 [2,3]");
  }
});

test("ranks that do not come are named by those that did", async () => {
  const job = await openJob(4);
  started.push(job);
  const waiting = startRank("conform", job.env(2));
  const host = startRank("conform", { ...job.env(0), PATIENCE: "1" });
  started.unshift(waiting, host);
  for (const { name, message } of await Promise.all([host, waiting].map((rank) => rank.said("failed")))) {
    expect(name).toBe("CollectiveTimeoutError");
    expect(message).toContain("ranks 1, 3 of 4 did not come within 1 s");
  }
});

test("rank 0 that does not come", async () => {
  const job = await openJob(2, { PATIENCE: "0.3" });
  const rank = startRank("conform", job.env(1));
  started.push(rank, job);
  const { name, message } = await rank.said("failed");
  expect(name).toBe("CollectiveTimeoutError");
  expect(message).toMatch(/rank 0 did not come in time; start all ranks of one job together/);
});

test("ranks that disagree about the world", async () => {
  const job = await openJob(2);
  const ranks = [startRank("conform", job.env(0)), startRank("conform", { ...job.env(1), WORLD_SIZE: "3" })];
  started.push(...ranks, job);
  expect((await ranks[1]!.said("failed")).message).toMatch(/rank 1 of 3 met rank 0 of 2; WORLD_SIZE must agree/);
});
