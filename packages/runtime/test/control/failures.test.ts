import { describe, expect, test } from "vitest";
import { RankProcess, spawnAgent, startAgent, startTree, startWorld } from "./ranks.ts";

const DEVICE = 1;

/** Starts a tree with two levels below the root: 0 → 1, 2 → 3, 4. */
const startDeepTree = () => startTree(5, { fanOut: 2 });

describe("the control plane after failures of ranks", () => {
  test("reports a killed rank to all others within a second, with its process and host", async () => {
    const agents = await startDeepTree();
    const [ranks, otherProcess] = [new RankProcess(), new RankProcess()];
    for (let rank = 0; rank < 10; rank++)
      (rank === 7 ? otherProcess : ranks).join(`${rank}`, { path: agents[rank % 5]!.path, rank, size: 10 });
    for (let rank = 0; rank < 10; rank++) await (rank === 7 ? otherProcess : ranks).waitForEvent(`${rank}`, "joined");
    const timeBefore = performance.now();
    otherProcess.kill("SIGKILL");
    for (const rank of [0, 1, 2, 3, 4, 5, 6, 8, 9])
      expect(await ranks.waitForEvent(`${rank}`, "lost")).toEqual({
        ...{ id: `${rank}`, event: "lost", rank: 7 },
        process: `rank 7 (pid ${otherProcess.pid} on n2)`,
      });
    expect(performance.now() - timeBefore).toBeLessThan(1000);
  });

  test("omits the host of a killed rank if there is only one host", async () => {
    const ranks = await startWorld([await startAgent()], 3);
    ranks.send("drop", "2");
    expect(await ranks.waitForEvent("0", "lost")).toMatchObject({ process: `rank 2 (pid ${ranks.pid})` });
  });

  test("reports a rank that leaves as exited, and not as lost when it disconnects", async () => {
    const agents = await startDeepTree();
    const ranks = await startWorld(agents, 10);
    for (const rank of [3, 4, 9]) ranks.send("leave", `${rank}`, "barrier #1 (world)");
    for (const rank of [3, 4, 9]) ranks.send("drop", `${rank}`);
    for (const rank of [0, 1, 2, 5, 6, 7, 8]) await ranks.waitForEvent(`${rank}`, "exited", 3);
    ranks.send("drop", "0");
    await ranks.waitForEvent("8", "lost");
    expect(
      ranks
        .listEvents("8", "exited")
        .map(({ rank }) => Number(rank))
        .toSorted((a, b) => a - b),
    ).toEqual([3, 4, 9]);
    expect(ranks.listEvents("8", "lost").map(({ rank }) => rank)).toEqual([0]);
    expect(ranks.listEvents("3", "controlLost")).toEqual([]);
  });

  test("sends the message of a failed rank to all others, and omits its end and a second failure", async () => {
    const ranks = await startWorld(await startDeepTree(), 10);
    const message = "rank 4 failed before allReduce #2 (world): the device is gone";
    ranks.send("fail", "4", DEVICE, message);
    for (const rank of [0, 1, 2, 3, 5, 6, 7, 8, 9])
      expect(await ranks.waitForEvent(`${rank}`, "failed")).toMatchObject({ rank: 4, code: DEVICE, message });
    ranks.send("fail", "0", DEVICE, "a consequence");
    ranks.send("drop", "4");
    ranks.send("drop", "8");
    for (const rank of [0, 9]) {
      await ranks.waitForEvent(`${rank}`, "lost");
      expect(ranks.listEvents(`${rank}`, "failed")).toHaveLength(1);
      expect(ranks.listEvents(`${rank}`, "lost").map((each) => each.rank)).toEqual([8]);
    }
    expect(ranks.listEvents("4", "failed")).toEqual([]);
  });

  test("reports earlier failures and losses to a rank when it attaches", async () => {
    const agent = await startAgent();
    const ranks = new RankProcess();
    for (const rank of [0, 1, 2]) ranks.open(`${rank}`, { path: agent.path, rank, size: 3 });
    ranks.send("join", "0", "detached");
    for (const rank of [1, 2]) ranks.send("join", `${rank}`);
    for (const rank of [0, 1, 2]) await ranks.waitForEvent(`${rank}`, "joined");
    ranks.send("fail", "1", DEVICE, "early");
    ranks.send("drop", "2");
    await ranks.waitForEvent("1", "lost");
    expect(ranks.listEvents("0")).toHaveLength(1);
    ranks.send("attach", "0");
    expect(await ranks.waitForEvent("0", "failed")).toMatchObject({ rank: 1, message: "early" });
    expect(await ranks.waitForEvent("0", "lost")).toMatchObject({ rank: 2 });
  });

  test("reports the failure of a rank that disconnects at once, in each of 100 rounds", async () => {
    const agent = await startAgent();
    const ranks = new RankProcess();
    for (let round = 0; round < 100; round++) {
      for (const rank of [0, 1, 2, 3])
        ranks.join(`${round}/${rank}`, { path: agent.path, rank, size: 4, world: `w${round}` });
      for (const rank of [0, 1, 2, 3]) await ranks.waitForEvent(`${round}/${rank}`, "joined");
      ranks.send("fail", `${round}/3`, DEVICE, "boom");
      ranks.send("drop", `${round}/3`);
      for (const rank of [0, 1, 2]) await ranks.waitForEvent(`${round}/${rank}`, "failed");
      for (const rank of [0, 1, 2]) expect(ranks.listEvents(`${round}/${rank}`, "lost")).toEqual([]);
      for (const rank of [0, 1, 2]) ranks.send("drop", `${round}/${rank}`);
    }
  });
});

describe("ranks that end together", () => {
  test("are all reported as exited to the remaining rank", async () => {
    const size = 60;
    const agents = await startDeepTree();
    const ranks = await startWorld(agents, size);
    for (let rank = 1; rank < size; rank++) ranks.send("leave", `${rank}`, `barrier #${rank} (world)`);
    await ranks.waitForEvent("0", "exited", size - 1);
    expect(ranks.listEvents("0", "lost")).toEqual([]);
    ranks.send("positions", "0", 1, "1,59");
    expect(await ranks.waitForEvent("0", "positions")).toMatchObject({
      positions: [
        { rank: 1, activity: 3, last: "barrier #1 (world)" },
        { rank: 59, activity: 3, last: "barrier #59 (world)" },
      ],
    });
  });
});

describe("the control plane after failures of agents", () => {
  const rankReason = "the connection to the agent was closed";

  test("reports ranks of a killed agent as lost, and disconnects these ranks from the control plane", async () => {
    const root = await startAgent({ host: "n0", children: true });
    const { child, path } = await spawnAgent({ host: "n1", index: 1, root: root.address! });
    const ranks = await startWorld([root, { path }], 4);
    child.kill("SIGKILL");
    for (const rank of [1, 3])
      expect(await ranks.waitForEvent(`${rank}`, "controlLost")).toMatchObject({ reason: rankReason });
    for (const [i, rank] of [1, 3].entries())
      expect(await ranks.waitForEvent("0", "lost", i + 1)).toMatchObject({
        rank,
        process: `rank ${rank} (pid ${ranks.pid} on n1; its agent exited)`,
      });
  });

  test("reports ranks of a stopped agent as lost after the timeout, and disconnects them when it resumes", async () => {
    const limits = { heartbeatMs: 100, heartbeatTimeoutMs: 700 };
    const root = await startAgent({ host: "n0", children: true, ...limits });
    const { child, stop, path } = await spawnAgent({ host: "n1", index: 1, root: root.address!, ...limits });
    const ranks = await startWorld([root, { path }], 4);
    const timeBefore = performance.now();
    await stop();
    expect(await ranks.waitForEvent("2", "lost")).toMatchObject({
      rank: 1,
      process: `rank 1 (pid ${ranks.pid} on n1; no heartbeat for 0.7 s)`,
    });
    expect(performance.now() - timeBefore).toBeGreaterThan(500);
    expect(performance.now() - timeBefore).toBeLessThan(2500);
    child.kill("SIGCONT");
    for (const rank of [1, 3])
      expect(await ranks.waitForEvent(`${rank}`, "controlLost")).toMatchObject({ reason: "the parent agent exited" });
  });

  test("disconnects the ranks below a stopped parent agent after the timeout", async () => {
    const limits = { heartbeatMs: 100, heartbeatTimeoutMs: 700 };
    const { child, stop, path, address } = await spawnAgent({ host: "n0", children: true, ...limits });
    const leafAgent = await startAgent({ host: "n1", index: 1, root: address, ...limits });
    const ranks = await startWorld([{ path }, leafAgent], 4);
    await stop();
    const reason = "no heartbeat from the parent agent for 0.7 s";
    for (const rank of [1, 3]) expect(await ranks.waitForEvent(`${rank}`, "controlLost")).toMatchObject({ reason });
    ranks.join("new", { path: leafAgent.path, rank: 0, size: 1, world: "v" });
    expect(await ranks.waitForEvent("new", "refused")).toMatchObject({ code: 2, message: `connect: ${reason}` });
    child.kill("SIGCONT");
  });

  test("loses no rank if all agents are stopped together and resume", async () => {
    const limits = { heartbeatMs: 100, heartbeatTimeoutMs: 500 };
    const root = await spawnAgent({ host: "n0", children: true, ...limits });
    const leafAgent = await spawnAgent({ host: "n1", index: 1, root: root.address, ...limits });
    const ranks = await startWorld([root, leafAgent], 2);
    for (const agent of [root, leafAgent]) await agent.stop();
    // The test needs real time to pass, longer than the limit.
    await new Promise((resolve) => setTimeout(resolve, 900));
    for (const { child } of [root, leafAgent]) child.kill("SIGCONT");
    ranks.send("positions", "0", 1, "1");
    expect(await ranks.waitForEvent("0", "positions")).toMatchObject({ positions: [{ rank: 1 }] });
    ranks.send("leave", "1", "");
    await ranks.waitForEvent("0", "exited");
    expect(ranks.listEvents("0", "lost")).toEqual([]);
    expect(ranks.listEvents("1", "controlLost")).toEqual([]);
  });

  test("blocks no rank that gets, joins or leaves while its agent ends", async () => {
    const { child, stop, path } = await spawnAgent({ host: "n0" });
    const ranks = await startWorld([{ path }], 3);
    ranks.send("get", "0", "never");
    ranks.join("late", { path, rank: 0, size: 2, world: "v", timeoutMs: 300 });
    await stop();
    // Must return although the agent does not reply.
    ranks.send("leave", "2", "");
    await ranks.waitForEvent("2", "left");
    child.kill("SIGKILL");
    expect(await ranks.waitForEvent("0", "refused")).toMatchObject({
      message: expect.stringMatching(/closed while connecting|lost the connection to the agent of this host/),
    });
    expect(await ranks.waitForEvent("1", "controlLost")).toMatchObject({ reason: rankReason });
    await ranks.waitForEvent("late", "refused");
    for (const id of ["0", "1", "2", "late"]) ranks.send("drop", id);
    for (const id of ["0", "1", "2", "late"]) await ranks.waitForEvent(id, "dropped");
  });
});
