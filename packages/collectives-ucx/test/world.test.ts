import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { ucxSystem } from "../src/index.ts";
import { openRanks, tensor } from "./ranks.ts";

/** Returns the mask of signals that this process handles. */
const readCaughtSignals = (): string => /^SigCgt:\s*(\w+)$/m.exec(readFileSync("/proc/self/status", "utf8"))![1]!;

/** Returns the size that this process has overwritten in each mapping of the C library's code. */
const listDirtyCodeMappings = (): readonly string[] =>
  readFileSync("/proc/self/smaps", "utf8")
    .split(/\n(?=[\da-f]+-[\da-f]+ )/)
    .filter((mapping) => /^\S+ r.xp .*\/libc[.-]/.test(mapping))
    .map((mapping) => /^Private_Dirty:\s*(.*)$/m.exec(mapping)![1]!);

test("loading UCX installs no signal handlers and overwrites no code of the C library", async () => {
  expect(listDirtyCodeMappings()).toEqual(["0 kB"]);
  const signalsBefore = readCaughtSignals();
  expect(ucxSystem().version).toMatch(/^1\.\d+\.\d+$/);
  expect(ucxSystem().library).toMatch(/libucp\.so/);
  await using ranks = await openRanks(2, { ucx: { network: "lo" } });
  expect(ranks.groups).toHaveLength(2);
  expect(readCaughtSignals()).toBe(signalsBefore);
  expect(listDirtyCodeMappings()).toEqual(["0 kB"]);
});

test("a network that this host does not have is rejected", async () => {
  await expect(openRanks(2, { ucx: { network: "eth9" } })).rejects.toThrow(
    /connect: rank [01]: UCX found no network "eth9" that reaches rank [01]; .*`ucx_info -d` lists/,
  );
});

test("a subnet selects its interfaces, and the ports are taken from the range", async () => {
  await using ranks = await openRanks(2, { ucx: { network: "127.0.0.0/8", ports: "23450-23499" } });
  const xs = ranks.devices.map((device, rank) => tensor(device, [rank + 1], [1]));
  ranks.groups.forEach((group, rank) => group.allReduce(xs[rank]!).wait());
  expect(Array.from(await xs[1]!.read())).toEqual([3]);
  expect(listeningPorts().filter((port) => port >= 23450 && port <= 23499).length).toBeGreaterThanOrEqual(2);
});

test("one rank needs no network", async () => {
  await using ranks = await openRanks(1);
  const x = tensor(ranks.devices[0]!, [1, 2], [2]);
  ranks.groups[0]!.allReduce(x).wait();
  expect(Array.from(await x.read())).toEqual([1, 2]);
});

test("a transfer that was never sent leaves its tensor unchanged, and a new world works beside the failed one", async () => {
  const count = 4 << 20;
  await using failedRanks = await openRanks(3, { timeout: 1 });
  const [a, b] = [0, 1].map((rank) =>
    tensor(failedRanks.devices[rank]!, new Float32Array(count).fill(rank + 1), [count]),
  );
  // Rank 0 receives from rank 1, which sends, and from rank 2, which never does.
  const c = tensor(failedRanks.devices[0]!, new Float32Array(count).fill(7), [count]);
  failedRanks.groups[0]!.sendRecv([
    { tensor: a!, from: 1 },
    { tensor: c, from: 2 },
  ]);
  failedRanks.groups[1]!.sendRecv([{ tensor: b!, to: 0 }]);
  await expect(failedRanks.groups[0]!.split(0)).rejects.toThrow(/timed out after 1 s|died|exited/);
  await using ranks = await openRanks(3);
  const xs = ranks.devices.map((device, rank) => tensor(device, new Float32Array(count).fill(rank), [count]));
  ranks.groups.forEach((group, rank) => group.allReduce(xs[rank]!).wait());
  for (const x of xs) expect((await x.read())[count - 1]).toBe(3);
  expect((await c.read()).every((value) => value === 7)).toBe(true);
});

/** Returns the TCP ports on which sockets of this host listen. */
function listeningPorts(): number[] {
  return readFileSync("/proc/net/tcp", "utf8")
    .split("\n")
    .slice(1)
    .map((line) => line.trim().split(/\s+/))
    .filter((fields) => fields[3] === "0A")
    .map((fields) => Number.parseInt(fields[1]!.split(":")[1]!, 16));
}
