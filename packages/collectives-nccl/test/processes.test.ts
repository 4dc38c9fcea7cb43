import { processSuite, RankProcesses } from "@mosaic/conformance";
import { expect, test } from "vitest";
import { runsOnGpu } from "./emulated.ts";
import { openJob, script } from "./processes.ts";

const program = { script, openJob };
const suite = processSuite({
  ...program,
  // A GPU that ranks share takes longer to release a communicator.
  noticeSeconds: runsOnGpu ? 5 : 2,
  withoutRankZero: /no agent listens at .*mosaic-run/,
});

test.each(suite.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run());

test("groups along a mesh axis reduce over processes, and their trace has times after the start", async () => {
  await using processes = new RankProcesses(program);
  const timeBefore = Number(process.hrtime.bigint());
  const ranks = await processes.startAll(4, "groups");
  for (const [rank, process] of ranks.entries()) {
    const { sum, ranks: members, trace } = await process.waitForEvent("grouped");
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
    expect(event!.start).toBeGreaterThan(timeBefore);
    expect(event!.end).toBeGreaterThan(event!.start);
  }
  expect(await Promise.all(ranks.map((rank) => rank.exitStatus))).toEqual([0, 0, 0, 0]);
});
