import { existsSync } from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { encode, type Frame, FrameReader, decode, MAGIC, PROTOCOL_VERSION, ROLES } from "@mosaic/launcher/agent";
import { describe, expect, test, vi } from "vitest";
import { RankProcess, createSocketDirectory, startAgent, startTree, startWorld } from "./ranks.ts";

const MISMATCH = 4;
const TIMEOUT = 3;
const CLOSED = 5;

describe("ranks of one host", () => {
  test("join, and receive the process ids of all members", async () => {
    const { path } = await startAgent();
    const [a, b] = [new RankProcess(), new RankProcess()];
    a.join("0", { path, rank: 0, size: 3 });
    b.join("1", { path, rank: 1, size: 3 });
    b.join("2", { path, rank: 2, size: 3 });
    const members = [a.pid, b.pid, b.pid].map((pid) => [0, pid]);
    expect(await a.waitForEvent("0", "joined")).toMatchObject({ members });
    expect(await b.waitForEvent("2", "joined")).toMatchObject({ members });
  });

  test("wait for an agent that starts later", async () => {
    const path = join(createSocketDirectory(), "late");
    const ranks = new RankProcess();
    ranks.join("0", { path, rank: 0, size: 1 });
    await startAgent({ path });
    await ranks.waitForEvent("0", "joined");
  });

  test("can join again after they have left, and join worlds of other names and attempts", async () => {
    const agent = await startAgent();
    const ranks = await startWorld([agent], 2);
    for (const rank of ["0", "1"]) ranks.send("leave", rank, "");
    for (const [world, attempt] of [
      ["w", 0],
      ["w", 1],
      ["v", 0],
    ] as const)
      for (const rank of [0, 1])
        ranks.join(`${world}${attempt}${rank}`, { path: agent.path, rank, size: 2, world, attempt });
    for (const id of ["w00", "w01", "w10", "w11", "v00", "v01"]) await ranks.waitForEvent(id, "joined");
  });

  test("are removed if they end before the world is complete", async () => {
    const { path } = await startAgent();
    const [lostProcess, ranks] = [new RankProcess(), new RankProcess()];
    lostProcess.join("1", { path, rank: 1, size: 2 });
    ranks.join("0", { path, rank: 0, size: 2 });
    lostProcess.kill("SIGKILL");
    await lostProcess.exit;
    ranks.join("1", { path, rank: 1, size: 2 });
    expect(await ranks.waitForEvent("0", "joined")).toMatchObject({
      members: [
        [0, ranks.pid],
        [0, ranks.pid],
      ],
    });
  });
});

describe("a rendezvous", () => {
  const remedy =
    "check the output of the missing ranks, and set the same WORLD_SIZE, MASTER_ADDR, MASTER_PORT and MOSAIC_RUN_ID on all ranks";

  test("times out with the missing ranks, after the timeout of the rank that joined first", async () => {
    const { path } = await startAgent();
    const ranks = new RankProcess();
    ranks.join("0", { path, rank: 0, size: 8, timeoutMs: 300 });
    for (const rank of [1, 3, 4, 7]) ranks.join(`${rank}`, { path, rank, size: 8 });
    const message = `connect: rendezvous timed out after 0.3 s: ranks 2, 5-6 of 8 are missing; ${remedy}`;
    for (const rank of [0, 1, 3, 4, 7])
      expect(await ranks.waitForEvent(`${rank}`, "refused")).toMatchObject({ code: TIMEOUT, message });
    ranks.join("again", { path, rank: 2, size: 8, timeoutMs: 100 });
    expect(await ranks.waitForEvent("again", "refused")).toMatchObject({
      message: `connect: rendezvous timed out after 0.1 s: ranks 0-1, 3-7 of 8 are missing; ${remedy}`,
    });
  });

  test("times out if no agent listens", async () => {
    const path = join(createSocketDirectory(), "none");
    const ranks = new RankProcess();
    ranks.join("0", { path, rank: 0, size: 2, timeoutMs: 50 });
    expect(await ranks.waitForEvent("0", "refused")).toMatchObject({
      code: TIMEOUT,
      message: expect.stringContaining(
        `rendezvous timed out after 0.05 s: no agent listens at ${path}; start the ranks`,
      ),
    });
  });

  test("does not end early with the maximum timeout", async () => {
    const agents = await startTree(2);
    const ranks = new RankProcess();
    const joinRank = (rank: number): void =>
      ranks.join(`${rank}`, { path: agents[rank]!.path, rank, size: 2, timeoutMs: 2 ** 31 - 1 });
    joinRank(1);
    // Long enough for an overflowing timer to fire.
    await delay(200);
    expect(ranks.listEvents("1")).toEqual([]);
    joinRank(0);
    for (const rank of [0, 1]) await ranks.waitForEvent(`${rank}`, "joined");
  });

  test("rejects two processes with the same rank, with one message to all ranks, even later ones", async () => {
    const agents = await startTree(2);
    const ranks = new RankProcess();
    ranks.join("1", { path: agents[0]!.path, rank: 1, size: 3 });
    await vi.waitFor(() => expect(agents[0]!.connections).toBe(2));
    ranks.join("duplicate", { path: agents[1]!.path, rank: 1, size: 3 });
    const message =
      `connect: duplicate rank 1: pid ${ranks.pid} on n0 and pid ${ranks.pid} on n1; ` +
      "each process needs a unique RANK";
    for (const id of ["1", "duplicate"])
      expect(await ranks.waitForEvent(id, "refused")).toMatchObject({ code: MISMATCH, message });
    ranks.join("0", { path: agents[1]!.path, rank: 0, size: 3 });
    expect(await ranks.waitForEvent("0", "refused")).toMatchObject({ code: MISMATCH, message });
    // A rank that was rejected can try again in a new rendezvous.
    await vi.waitFor(() => expect(agents[0]!.connections).toBe(1));
    ranks.join("new 1", { path: agents[0]!.path, rank: 1, size: 3 });
    await vi.waitFor(() => expect(agents[0]!.connections).toBe(2));
    for (const rank of [0, 2]) ranks.join(`new ${rank}`, { path: agents[1]!.path, rank, size: 3 });
    await ranks.waitForEvent("new 2", "joined");
  });

  test.each([
    [3, 5, "WORLD_SIZE mismatch: 5 on rank 3, 4 on rank 0; set the same WORLD_SIZE on all ranks"],
    [4, 4, "RANK: expected an integer from 0 to 3, received 4"],
  ])("rejects rank %d of %d in a world of 4", async (rank, size, message) => {
    const agents = await startTree(2);
    const ranks = new RankProcess();
    ranks.join("0", { path: agents[0]!.path, rank: 0, size: 4 });
    await vi.waitFor(() => expect(agents[0]!.connections).toBe(2));
    ranks.join("odd", { path: agents[1]!.path, rank, size });
    for (const id of ["0", "odd"])
      expect(await ranks.waitForEvent(id, "refused")).toEqual({
        ...{ id, event: "refused", code: MISMATCH },
        message: `connect: ${message}`,
      });
  });

  test("rejects ranks with a different secret or none", async () => {
    const { path } = await startAgent({ host: "n0", secret: "right" });
    const ranks = new RankProcess();
    for (const [id, secret] of [
      ["wrong", "wrong"],
      ["none", ""],
    ] as const)
      ranks.join(id, { path, rank: 0, size: 1, secret });
    const message =
      "connect: shared secret mismatch with the agent on n0; pass the same MOSAIC_TOKEN_FILE to all processes of the job";
    for (const id of ["wrong", "none"])
      expect(await ranks.waitForEvent(id, "refused")).toMatchObject({ code: MISMATCH, message });
    ranks.join("right", { path, rank: 0, size: 1, secret: "right" });
    await ranks.waitForEvent("right", "joined");
  });

  test("rejects a rank with another protocol version, and all ranks that wait", async () => {
    const agent = await startAgent({ host: "n0" });
    const { path } = agent;
    const ranks = new RankProcess();
    ranks.join("0", { path, rank: 0, size: 2 });
    await vi.waitFor(() => expect(agent.connections).toBe(1));
    const greeting = {
      magic: MAGIC,
      version: PROTOCOL_VERSION + 1,
      secret: "",
      role: ROLES.rank,
      agent: 0,
      host: "",
      address: "",
    };
    const answer = await readFirstAnswer(path, encode({ kind: "hello", ...greeting }));
    const versions = "uses version 3, the agent on n0 uses version 2; use the same version of";
    expect(answer).toMatchObject({ kind: "refused", code: MISMATCH, message: expect.stringContaining(versions) });
    expect(await ranks.waitForEvent("0", "refused")).toMatchObject({ message: expect.stringContaining(versions) });
    expect(PROTOCOL_VERSION).toBe(2);
  });

  test("ends at once if it is interrupted, whether the agent listens or not", async () => {
    const { path } = await startAgent();
    const ranks = new RankProcess();
    ranks.join("0", { path, rank: 0, size: 2 });
    ranks.join("lost", { path: `${path}-none`, rank: 0, size: 2 });
    for (const id of ["0", "lost"]) {
      ranks.send("interrupt", id);
      const message = "connect: this rank closed while connecting";
      expect(await ranks.waitForEvent(id, "refused")).toMatchObject({ code: CLOSED, message });
    }
  });
});

describe("the agent's socket", () => {
  test("is replaced if its agent has ended, but not while its agent runs", async () => {
    const path = join(createSocketDirectory(), "agent");
    const deadAgent = await startAgent({ path });
    deadAgent.unlink();
    expect(existsSync(path)).toBe(false);
    await deadAgent.restoreSocketFile();
    await expect(startAgent({ path })).rejects.toMatchObject({ code: "EADDRINUSE" });
    const { path: otherPath } = await startAgent();
    const ranks = await startWorld([deadAgent], 1);
    await deadAgent.close();
    expect(existsSync(path)).toBe(false);
    await startAgent({ path });
    ranks.join("again", { path, rank: 0, size: 1 });
    await ranks.waitForEvent("again", "joined");
    expect(otherPath).not.toBe(path);
  });

  test("is rejected if its path is too long, with the limit", async () => {
    const ranks = new RankProcess();
    ranks.join("0", { path: `/tmp/${"x".repeat(120)}`, rank: 0, size: 1, timeoutMs: 100 });
    expect(await ranks.waitForEvent("0", "refused")).toMatchObject({
      message: expect.stringMatching(/1 to 107 bytes .*received 125 bytes/),
    });
    const longPath = join(createSocketDirectory(), "x".repeat(100));
    await expect(startAgent({ path: longPath })).rejects.toThrow(/at most 107 bytes/);
  });
});

/** Sends bytes to an agent. Resolves to the first frame of its reply. */
async function readFirstAnswer(path: string, bytes: Buffer): Promise<Frame> {
  const socket = connect({ path });
  const reader = new FrameReader();
  socket.write(bytes);
  for await (const chunk of socket) {
    reader.push(chunk as Buffer);
    const content = reader.next();
    if (content !== undefined) return decode(content);
  }
  throw new Error("no answer");
}
