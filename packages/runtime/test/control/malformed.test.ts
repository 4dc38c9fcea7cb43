import { once } from "node:events";
import { readFileSync } from "node:fs";
import { connect, createServer, type Socket } from "node:net";
import { join } from "node:path";
import { encode, type Frame, MAGIC, PROTOCOL_VERSION, ROLES, type RankRanges } from "@mosaic/launcher/agent";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import { mutateFrame, createRandom } from "./mutations.ts";
import { RankProcess, createSocketDirectory, spawnAgent, startAgent, startWorld } from "./ranks.ts";

/** Number of malformed frames to send. */
const FRAMES = Number(process.env.MOSAIC_TEST_FRAMES ?? 1000);
const timeout = 60_000 + 60 * FRAMES;
const AT_ONCE = 50;
/** Limit of memory growth. Sanitizers need more, because they keep shadow memory of allocations. */
const GROWTH_MB = process.env.MOSAIC_SANITIZE === undefined ? 64 : 256;

const encodeHello = (role: number, agent = 0): Buffer =>
  encode({
    ...{ kind: "hello", magic: MAGIC, version: PROTOCOL_VERSION, secret: "", role, agent, host: "x", address: "x:1" },
  });

/** Encodes the join of a rank to a world whose other ranks never join. */
const encodeJoin = (rank: number, size: number, world: number): Buffer =>
  encode({
    ...{ kind: "join", world, name: `fuzz ${size}`, attempt: 0, size, timeoutMs: 60_000, remainingMs: 60_000 },
    hosts: [{ agent: 9, name: "x" }],
    members: [{ rank, pid: 1, host: 0 }],
  });

const readResidentMegabytes = (pid: number): number =>
  Number(/VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]) / 1024;

describe("malformed frames do not affect an agent", { timeout }, () => {
  const sources: readonly (readonly [string, (seed: number) => Buffer[]])[] = [
    ["without a hello", () => []],
    ["from a rank before it has joined", () => [encodeHello(ROLES.rank)]],
    ["from a rank that waits", () => [encodeHello(ROLES.rank), encodeJoin(0, 2, 0)]],
    ["from a rank of a complete world", () => [encodeHello(ROLES.rank), encodeJoin(0, 1, 0)]],
    [
      "from a child agent",
      (seed) => [encodeHello(ROLES.agent, 1 + (seed % 16)), encodeJoin(0, 1, 0), encodeJoin(1, 4, 1)],
    ],
  ];

  test.each(sources)("%s", async (_, createOpening) => {
    const { path, child } = await spawnAgent({ host: "n0", children: true });
    const ranks = await startWorld([{ path }], 3);
    const floodFrom = async (firstSeed: number): Promise<void> => {
      for (let seed = firstSeed; seed < firstSeed + FRAMES; ) {
        const random = createRandom(seed);
        const socket = connect({ path });
        const closeEvent = new Promise((resolve) => socket.on("close", resolve));
        socket.on("error", () => {}).resume();
        for (const bytes of createOpening(seed)) socket.write(bytes);
        // Sends the frames one after the other, because the agent may close the connection between them.
        for (let i = 0; i < 8 && !socket.destroyed; i++, seed++)
          await new Promise<void>((onWritten) => socket.write(mutateFrame(random), () => onWritten()));
        socket.end();
        await closeEvent;
      }
    };
    await floodFrom(0);
    const megabytesBefore = readResidentMegabytes(child.pid!);
    await floodFrom(100_000);
    expect(readResidentMegabytes(child.pid!) - megabytesBefore).toBeLessThan(GROWTH_MB);
    ranks.send("put", "0", "still", "there");
    ranks.send("get", "2", "still");
    expect(await ranks.waitForEvent("2", "value")).toMatchObject({ value: "there" });
    ranks.send("positions", "0", 1, "1,2");
    expect(await ranks.waitForEvent("0", "positions")).toMatchObject({ positions: [{ rank: 1 }, { rank: 2 }] });
    for (const rank of [0, 1, 2])
      for (const event of ["lost", "failed", "mismatch", "controlLost"])
        expect(ranks.listEvents(`${rank}`, event)).toEqual([]);
  });
});

describe("malformed frames can only close the connection of a rank", { timeout }, () => {
  const memberTable = encode({
    ...{ kind: "memberTable", world: 0, hosts: ["n0", "n1"] },
    members: Array.from({ length: 8 }, (_, rank) => ({ host: rank % 2, pid: 70 + rank })),
  });

  test.each([
    ["while it joins", [] as Buffer[]],
    ["once it has joined", [memberTable]],
  ])("%s", async (_, createOpening) => {
    let seed = 0;
    const path = await listen((socket) => {
      for (const bytes of createOpening) socket.write(bytes);
      socket.end(mutateFrame(createRandom(seed++)));
    });
    const ranks = new RankProcess();
    let megabytesBefore = 0;
    for (let firstSeed = 0; firstSeed < 2 * FRAMES; firstSeed += AT_ONCE) {
      if (firstSeed === FRAMES) megabytesBefore = readResidentMegabytes(ranks.pid);
      const ids = Array.from({ length: AT_ONCE }, (__, i) => `${firstSeed + i}`);
      for (const id of ids) ranks.join(id, { path, rank: 3, size: 8, timeoutMs: 60_000 });
      // Ranks that have connected lose the control plane, during `join` or later. Other ranks try again.
      if (createOpening.length === 0)
        await vi.waitFor(() => expect(seed).toBeGreaterThan(firstSeed + AT_ONCE), { interval: 1 });
      else
        for (const id of ids)
          await vi.waitFor(() => expect(listEndEvents(ranks, id)).toHaveLength(1), { timeout: 10_000, interval: 1 });
      for (const id of ids) ranks.send("drop", id);
      for (const id of ids) await ranks.waitForEvent(id, "dropped");
    }
    expect(readResidentMegabytes(ranks.pid) - megabytesBefore).toBeLessThan(GROWTH_MB);
  });
});

describe("a frame with more ranks than the world size closes the connection", () => {
  const gone = {
    activity: 0,
    group: 0n,
    sequence: 0n,
    index: 0n,
    operation: "",
    description: "",
    last: "",
    metrics: [],
  };
  const world = 0;
  const allRanks = (size: number): RankRanges => [[0, size]];
  // Each list is valid by itself, but together they would require gigabytes.
  const frames: readonly (readonly [string, Frame, RegExp])[] = [
    [
      "positions",
      { kind: "positions", world, request: 1n, positions: [{ ranks: [[8, 1]], ...gone }] },
      /expected (a rank|ranks) below 8/,
    ],
    [
      "positions, again and again",
      {
        ...{ kind: "positions", world, request: 1n },
        positions: Array.from({ length: 150_000 }, () => ({ ranks: allRanks(8), ...gone })),
      },
      /more ranks than the world size/,
    ],
    [
      "losses",
      { kind: "lost", world, losses: [{ ranks: allRanks(65_536), reason: "" }] },
      /expected (a rank|ranks) below 8/,
    ],
    [
      "losses, again and again",
      { kind: "lost", world, losses: Array.from({ length: 20_000 }, () => ({ ranks: allRanks(8), reason: "" })) },
      /more ranks than the world size/,
    ],
    ["exits", { kind: "exited", world, ranks: [[7, 2]] }, /expected (a rank|ranks) below 8/],
    ["a failure", { kind: "failed", world, rank: 8, code: 1, message: "" }, /expected (a rank|ranks) below 8/],
  ];

  test.each(frames)("%s", async (_, frame, reason) => {
    const memberTable = encode({
      ...{ kind: "memberTable", world, hosts: ["n0"] },
      members: Array.from({ length: 8 }, (__, rank) => ({ host: 0, pid: 70 + rank })),
    });
    const path = await listen((socket) => {
      socket.write(memberTable);
      socket.end(encode(frame));
    });
    const ranks = new RankProcess();
    const megabytesBefore = readResidentMegabytes(ranks.pid);
    ranks.join("0", { path, rank: 3, size: 8, timeoutMs: 60_000 });
    await vi.waitFor(() => expect(listEndEvents(ranks, "0")).toHaveLength(1), { timeout: 10_000, interval: 1 });
    // The rank loses the control plane during `join` or later.
    const [end] = listEndEvents(ranks, "0");
    expect(String(end?.reason ?? end?.message)).toMatch(reason);
    expect(ranks.listEvents("0", "positions")).toEqual([]);
    expect(readResidentMegabytes(ranks.pid) - megabytesBefore).toBeLessThan(GROWTH_MB);
  });
});

test("a rank cannot set the color of another rank in a split", async () => {
  const agent = await startAgent();
  const ranks = new RankProcess();
  ranks.join("0", { path: agent.path, rank: 0, size: 2, world: "fuzz 2" });
  const socket = connect({ path: agent.path }).resume();
  onTestFinished(() => void socket.destroy());
  for (const bytes of [encodeHello(ROLES.rank), encodeJoin(1, 2, 0)]) socket.write(bytes);
  await ranks.waitForEvent("0", "joined");
  const colors = [
    { rank: 0, color: 9n },
    { rank: 1, color: 5n },
  ];
  socket.write(encode({ kind: "split", world: 0, group: 1n, index: 1n, ranks: [[0, 2]], colors }));
  // The value arrives once the agent has handled the split.
  socket.write(encode({ kind: "put", world: 0, key: "sent", value: Buffer.from("split") }));
  ranks.send("get", "0", "sent");
  await ranks.waitForEvent("0", "value");
  ranks.send("split", "0", 1, 1, 7, "0,1");
  expect(await ranks.waitForEvent("0", "colors")).toMatchObject({ colors: ["7", "5"] });
});

const listEndEvents = (ranks: RankProcess, id: string) => [
  ...ranks.listEvents(id, "refused"),
  ...ranks.listEvents(id, "controlLost"),
];

/** Starts a server in place of an agent. Resolves to its path. */
async function listen(serve: (socket: Socket) => void): Promise<string> {
  const path = join(createSocketDirectory(), "agent");
  const server = createServer((socket) => serve(socket.on("error", () => {}).resume()));
  onTestFinished(() => void server.close());
  server.listen({ path });
  await once(server, "listening");
  return path;
}
