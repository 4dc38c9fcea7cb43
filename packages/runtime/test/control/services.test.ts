import { describe, expect, test } from "vitest";
import { RankProcess, startAgent, startTree, startWorld } from "./ranks.ts";

const TIMEOUT = 3;
const WORLD = 1n;
const SAME_CALLS = "; all ranks of a group must call the same collectives in the same order, with the same shapes";

/** Starts a tree with two levels below the root: 0 → 1, 2 → 3, 4. */
const startDeepTree = () => startTree(5, { fanOut: 2 });

describe("values", () => {
  test("are delivered to every rank, whether it requests them before or after the put", async () => {
    const agents = await startDeepTree();
    const ranks = await startWorld(agents, 10);
    for (let rank = 0; rank < 5; rank++) ranks.send("get", `${rank}`, "id");
    ranks.send("put", "9", "id", "größer");
    for (let rank = 0; rank < 5; rank++)
      expect(await ranks.waitForEvent(`${rank}`, "value")).toMatchObject({ key: "id", value: "größer" });
    // A second value for a key is ignored.
    ranks.send("put", "9", "id", "other");
    ranks.send("put", "9", "next", "");
    ranks.send("get", "8", "next");
    expect(await ranks.waitForEvent("8", "value")).toMatchObject({ key: "next", value: "" });
    for (let rank = 5; rank < 10; rank++) ranks.send("get", `${rank}`, "id");
    for (const rank of [5, 6, 7, 9])
      expect(await ranks.waitForEvent(`${rank}`, "value")).toMatchObject({ key: "id", value: "größer" });
    expect(await ranks.waitForEvent("8", "value", 2)).toMatchObject({ key: "id", value: "größer" });
  });

  test("keep the first of several puts, on all hosts", async () => {
    const ranks = await startWorld(await startDeepTree(), 5);
    ranks.send("put", "3", "key", "first");
    ranks.send("get", "3", "key");
    await ranks.waitForEvent("3", "value");
    for (let rank = 0; rank < 5; rank++) {
      ranks.send("put", `${rank}`, "key", `of rank ${rank}`);
      ranks.send("get", `${rank}`, "key");
    }
    for (const rank of [0, 1, 2, 4])
      expect(await ranks.waitForEvent(`${rank}`, "value")).toMatchObject({ key: "key", value: "first" });
    expect(await ranks.waitForEvent("3", "value", 2)).toMatchObject({ key: "key", value: "first" });
  });

  test("are visible only in their own world", async () => {
    const agent = await startAgent();
    const ranks = await startWorld([agent], 1);
    ranks.join("other", { path: agent.path, rank: 0, size: 1, world: "v", timeoutMs: 100 });
    await ranks.waitForEvent("other", "joined");
    ranks.send("put", "0", "key", "value");
    ranks.send("get", "other", "key");
    expect(await ranks.waitForEvent("other", "refused")).toMatchObject({
      code: TIMEOUT,
      message: 'connect: timed out after 0.1 s: no rank has set the key "key"',
    });
  });

  test("are refused to a rank that waits for them once another rank is lost", async () => {
    const ranks = await startWorld(await startTree(2), 3);
    ranks.send("get", "0", "key");
    ranks.send("drop", "1");
    expect(await ranks.waitForEvent("0", "refused")).toMatchObject({
      code: 2,
      message: `connect: rank 1 (pid ${ranks.pid} on n1) exited while the ranks were connecting`,
    });
    ranks.send("get", "2", "key");
    ranks.send("interrupt", "2");
    expect(await ranks.waitForEvent("2", "refused")).toMatchObject({ code: expect.toBeOneOf([2, 5]) });
  });
});

describe("splits", () => {
  test("return the colors by rank in the group, also in groups that a split made", async () => {
    const ranks = await startWorld(await startDeepTree(), 12);
    const allRanks = Array.from({ length: 12 }, (_, rank) => rank);
    for (const rank of allRanks) ranks.send("split", `${rank}`, WORLD, 1, rank % 3, allRanks.join());
    for (const rank of allRanks)
      expect(await ranks.waitForEvent(`${rank}`, "colors")).toMatchObject({
        ...{ group: "1", index: "1" },
        colors: allRanks.map((each) => `${each % 3}`),
      });
    const splitGroupId = splitId(WORLD, 1n, 2n);
    const members = [2, 5, 8, 11];
    for (const rank of members) ranks.send("split", `${rank}`, splitGroupId, 1, -rank, members.join());
    for (const rank of members)
      expect(await ranks.waitForEvent(`${rank}`, "colors", 2)).toMatchObject({
        ...{ group: `${splitGroupId}`, index: "1" },
        colors: members.map((each) => `${-each}`),
      });
    expect(ranks.listEvents("0", "colors")).toHaveLength(1);
  });

  test("complete once the ranks of their own group have called", async () => {
    const ranks = await startWorld([await startAgent()], 2);
    ranks.send("split", "0", 77n, 1, 5, "0");
    expect(await ranks.waitForEvent("0", "colors")).toMatchObject({ group: "77", colors: ["5"] });
  });
});

describe("calls", () => {
  /** Logs and reports the calls of a rank, whose histories are given in order. */
  function postCalls(ranks: RankProcess, rank: number, group: bigint, history: readonly number[]): void {
    for (const [i, value] of history.entries())
      ranks.send("log", `${rank}`, group, i + 1, value, `op${value} #${i + 1} (world)`);
    ranks.send("call", `${rank}`, group, history.length, history.at(-1)!);
  }

  test("report one mismatch after many calls that agree, and none for those", async () => {
    const ranks = await startWorld(await startDeepTree(), 10);
    for (let step = 1; step <= 50; step++)
      for (let rank = 0; rank < 10; rank++) ranks.send("call", `${rank}`, WORLD, 16 * step, 1000 + step);
    for (let rank = 0; rank < 10; rank++) postCalls(ranks, rank, WORLD, rank === 7 ? [1, 2, 9] : [1, 2, 3]);
    for (let rank = 0; rank < 10; rank++) await ranks.waitForEvent(`${rank}`, "mismatch");
    expect(ranks.listEvents("0", "mismatch")).toHaveLength(1);
  });

  test.each([
    ["on one host", 1],
    ["of two hosts", 2],
    ["below different agents", 5],
  ])("report the first difference between ranks %s", async (_, hosts) => {
    const ranks = await startWorld(await startTree(hosts, { fanOut: 2 }), 5);
    for (let rank = 0; rank < 5; rank++) postCalls(ranks, rank, WORLD, rank === 4 ? [1, 7, 8, 9] : [1, 2, 3, 4]);
    for (let rank = 0; rank < 5; rank++) {
      const { group, message } = await ranks.waitForEvent(`${rank}`, "mismatch");
      expect(group).toBe("1");
      // Any of the other ranks may have been compared with rank 4.
      expect(message).toMatch(/^rank [0-3] is at op2 #2 \(world\), rank 4 at op7 #2 \(world\); all ranks/);
      expect(message).toContain(SAME_CALLS);
    }
    for (let rank = 0; rank < 5; rank++) expect(ranks.listEvents(`${rank}`, "mismatch")).toHaveLength(1);
  });

  test("are compared within a split group, and a mismatch is reported to its members", async () => {
    const ranks = await startWorld(await startDeepTree(), 6);
    for (let rank = 0; rank < 6; rank++) ranks.send("split", `${rank}`, WORLD, 1, rank % 2, "0,1,2,3,4,5");
    for (let rank = 0; rank < 6; rank++) await ranks.waitForEvent(`${rank}`, "colors");
    const [evenGroup, oddGroup] = [splitId(WORLD, 1n, 0n), splitId(WORLD, 1n, 1n)];
    for (const rank of [0, 2, 4]) postCalls(ranks, rank, evenGroup, [5]);
    for (const rank of [1, 3, 5]) postCalls(ranks, rank, oddGroup, rank === 5 ? [6] : [5]);
    for (const rank of [1, 3, 5])
      expect(await ranks.waitForEvent(`${rank}`, "mismatch")).toMatchObject({ group: `${oddGroup}` });
    for (const rank of [0, 2, 4]) expect(ranks.listEvents(`${rank}`, "mismatch")).toEqual([]);
  });

  test("are compared between the remaining ranks after a rank has made its last call and left", async () => {
    const ranks = await startWorld([await startAgent()], 3);
    postCalls(ranks, 0, WORLD, [5]);
    ranks.send("leave", "0", "op5 #1 (world)");
    await ranks.waitForEvent("1", "exited");
    postCalls(ranks, 1, WORLD, [5]);
    postCalls(ranks, 2, WORLD, [6]);
    for (const rank of ["1", "2"])
      expect(await ranks.waitForEvent(rank, "mismatch")).toMatchObject({
        message: `rank 1 is at op5 #1 (world), rank 2 at op6 #1 (world)${SAME_CALLS}`,
      });
  });

  test("are compared for messages of two ranks, and a mismatch is reported only to these two", async () => {
    const ranks = await startWorld(await startDeepTree(), 10);
    const messages = 0xfeed_f00dn;
    for (const [rank, size] of [
      [2, 100],
      [9, 128],
    ] as const) {
      ranks.send("log", `${rank}`, messages, 1, size, `sendRecv #1 (world) float32 [${size}]`);
      ranks.send("call", `${rank}`, messages, 1, size, "2,9");
    }
    for (const rank of [2, 9])
      expect(await ranks.waitForEvent(`${rank}`, "mismatch")).toMatchObject({
        group: `${messages}`,
        message: `rank 2 is at sendRecv #1 (world) float32 [100], rank 9 at sendRecv #1 (world) float32 [128]${SAME_CALLS}`,
      });
    // The root sends frames in order, so a mismatch would have arrived before the value.
    ranks.send("put", "0", "key", "value");
    ranks.send("get", "5", "key");
    await ranks.waitForEvent("5", "value");
    expect(ranks.listEvents("5", "mismatch")).toEqual([]);
  });

  test("report a mismatch without details if the log no longer has the difference", async () => {
    const ranks = await startWorld([await startAgent()], 2);
    ranks.send("call", "0", WORLD, 16, 1);
    ranks.send("call", "1", WORLD, 16, 2);
    expect(await ranks.waitForEvent("0", "mismatch")).toMatchObject({
      message: `ranks 0 and 1 diverged at a collective that is no longer in the call log${SAME_CALLS}`,
    });
  });
});

describe("positions", () => {
  const idle = { activity: 0, group: "0", sequence: "0", index: "0", operation: "", description: "", last: "" };

  test("are returned for exactly the requested ranks, with their current operations", async () => {
    const ranks = await startWorld(await startDeepTree(), 10);
    const operation = "allGather #42 (sp)";
    ranks.send("at", "3", 2, 77n, 42, 40, operation, `${operation} float32 [2,8]`, "barrier #41 (sp)");
    ranks.send("at", "8", 1, 77n, 42, 40, operation, "", "");
    ranks.send("positions", "0", 5, "3,4,8");
    expect(await ranks.waitForEvent("0", "positions")).toMatchObject({
      request: "5",
      positions: [
        {
          ...{ rank: 3, activity: 2, group: "77", sequence: "42", index: "40", operation },
          ...{ description: `${operation} float32 [2,8]`, last: "barrier #41 (sp)" },
        },
        { rank: 4, ...idle },
        { rank: 8, activity: 1, group: "77", operation },
      ],
    });
  });

  test("contain the last operation of exited ranks, and the failed state of lost ranks", async () => {
    const ranks = await startWorld(await startDeepTree(), 6);
    ranks.send("leave", "4", "allReduce #7 (world)");
    await ranks.waitForEvent("0", "exited");
    ranks.send("drop", "5");
    await ranks.waitForEvent("0", "lost");
    ranks.send("positions", "0", 1, "1,4,5");
    expect(await ranks.waitForEvent("0", "positions")).toMatchObject({
      positions: [
        { rank: 1, ...idle },
        { rank: 4, ...idle, activity: 3, last: "allReduce #7 (world)" },
        { rank: 5, ...idle, activity: 4 },
      ],
    });
  });

  test("omit ranks whose process is stopped, after at most 1.2 s", async () => {
    const agents = await startTree(2);
    const ranks = new RankProcess();
    const stoppedProcess = await startMixed(
      agents.map(({ path }) => path),
      ranks,
    );
    await stoppedProcess.stop();
    const timeBefore = performance.now();
    ranks.send("positions", "a0", 9, "1,2");
    expect(await ranks.waitForEvent("a0", "positions")).toMatchObject({ positions: [{ rank: 1, ...idle }] });
    expect(performance.now() - timeBefore).toBeLessThan(1200);
    stoppedProcess.kill("SIGCONT");
  });

  test("are returned to all ranks that request them at the same time", async () => {
    const size = 24;
    const ranks = await startWorld(await startTree(6, { fanOut: 2 }), size);
    const allRanks = Array.from({ length: size }, (_, rank) => rank);
    for (const rank of allRanks) ranks.send("at", `${rank}`, 2, WORLD, rank === 5 ? 8 : 9, 9, "x", "y", "z");
    for (const rank of allRanks)
      ranks.send("positions", `${rank}`, 100 + rank, allRanks.filter((each) => each !== rank).join());
    for (const rank of allRanks) {
      const { request, positions } = await ranks.waitForEvent(`${rank}`, "positions");
      expect(request).toBe(`${100 + rank}`);
      expect((positions as { rank: number }[]).map((each) => each.rank)).toEqual(
        allRanks.filter((each) => each !== rank),
      );
    }
  });
});

/** Starts a world of three ranks, of which rank 2 is in a separate process. */
async function startMixed(paths: readonly string[], ranks: RankProcess): Promise<RankProcess> {
  const separateRank = new RankProcess();
  for (const rank of [0, 1]) ranks.join(`a${rank}`, { path: paths[rank]!, rank, size: 3 });
  separateRank.join("a2", { path: paths[1]!, rank: 2, size: 3 });
  for (const rank of [0, 1]) await ranks.waitForEvent(`a${rank}`, "joined");
  await separateRank.waitForEvent("a2", "joined");
  return separateRank;
}

/** Computes the same as `splitId` of packages/runtime/native/collectives/call.cc. */
function splitId(parent: bigint, index: bigint, color: bigint): bigint {
  let id = 0xcbf29ce484222325n;
  for (const word of [parent, index, color]) id = BigInt.asUintN(64, (id ^ BigInt.asUintN(64, word)) * 0x100000001b3n);
  return id;
}
