import { perturbContext } from "@mosaic/conformance";
import { PeerLostError, type ProcessGroup } from "@mosaic/core";
import { expect, test } from "vitest";
import { world } from "../src/index.ts";
import { TestDevice } from "./device.ts";
import { openRanks } from "./ranks.ts";
import { tensor } from "./values.ts";

test("split makes groups of one color in rank order, and groups can be split again", async () => {
  await using ranks = await openRanks(6);
  const halves = await Promise.all(ranks.groups.map((group) => group.split(group.rank % 2 ? -5 : 9, "half")));
  expect(halves.map((half) => half.ranks)).toEqual([
    [0, 2, 4],
    [1, 3, 5],
    [0, 2, 4],
    [1, 3, 5],
    [0, 2, 4],
    [1, 3, 5],
  ]);
  expect(halves.map((half) => half.rank)).toEqual([0, 0, 1, 1, 2, 2]);
  const quarterGroups = await Promise.all(halves.map((half) => half.split(half.rank === 0 ? 0 : 1)));
  expect(quarterGroups.map((quarterGroup) => [quarterGroup.name, ...quarterGroup.ranks])).toEqual([
    ["half/0", 0],
    ["half/0", 1],
    ["half/1", 2, 4],
    ["half/1", 3, 5],
    ["half/1", 2, 4],
    ["half/1", 3, 5],
  ]);
});

test("every group has the timeout of its world", async () => {
  await using ranks = await openRanks(2, { timeout: 7.5, mesh: { dp: 2, sp: 1 } });
  const halves = await Promise.all(ranks.groups.map((group) => group.split(group.rank, "half")));
  for (const [rank, ctx] of ranks.contexts.entries()) {
    const perturbed = perturbContext(ctx, { completion: "soon", seed: 0 });
    const groups = [ctx.world, ctx.mesh.group("dp"), halves[rank]!, perturbed.world];
    expect(groups.map(({ timeout }) => timeout)).toEqual([7.5, 7.5, 7.5, 7.5]);
  }
});

test("a split for which a rank exited without calling it fails, long before the timeout", async () => {
  await using ranks = await openRanks(3, { timeout: 60 });
  const splits = [1, 2].map(async (rank) => ranks.groups[rank]!.split(0).catch((error: unknown) => error));
  await ranks.contexts[0]!.close();
  for (const error of await Promise.all(splits)) {
    expect(error).toBeInstanceOf(PeerLostError);
    expect(String(error)).toMatch(
      /rank 0 exited before its first operation; rank [12] needed it in split #1 \(world\)/,
    );
  }
});

test("groups of a mesh work independently, each with its own traffic counts", async () => {
  await using ranks = await openRanks(6, { mesh: { dp: 2, sp: 3 } });
  const groupsAlong = (axis: string) => ranks.contexts.map(({ mesh }) => mesh.group(axis));
  const allReduceRanks = async (groups: readonly ProcessGroup[]) => {
    const xs = ranks.devices.map((device, rank) => tensor(device, [10 ** rank], [1]));
    groups.forEach((group, rank) => group.allReduce(xs[rank]!).wait());
    return Promise.all(xs.map(async (x) => (await x.read())[0]));
  };
  expect(await allReduceRanks(groupsAlong("sp"))).toEqual([111, 111, 111, 111_000, 111_000, 111_000]);
  expect(await allReduceRanks(groupsAlong("dp"))).toEqual([1001, 10_010, 100_100, 1001, 10_010, 100_100]);
  for (const group of groupsAlong("sp"))
    expect(group.traffic()).toEqual({ bytesSent: 8, bytesReceived: 8, messagesSent: 2 });
  for (const group of groupsAlong("dp"))
    expect(group.traffic()).toEqual({ bytesSent: 4, bytesReceived: 4, messagesSent: 1 });
});

test("errors identify peers by world rank and groups by name", async () => {
  await using ranks = await openRanks(4, { timeout: 0.2, mesh: { dp: 2, sp: 2 } });
  const x = tensor(ranks.devices[3]!, [1], [1]);
  ranks.contexts[3]!.mesh.group("sp").allReduce(x).wait();
  await expect(x.read()).rejects.toThrow(/rank 3 waits in allReduce #1 \(sp\); rank 2 is in no collective/);
});

test("several worlds that are open at the same time are independent", async () => {
  const worlds = await Promise.all([2, 3, 2, 4].map((size) => openRanks(size)));
  const sums = worlds.map(async ({ groups, devices }, w) => {
    const xs = devices.map((device) => tensor(device, [w + 1], [1]));
    groups.forEach((group, rank) => group.allReduce(xs[rank]!).wait());
    return (await xs[0]!.read())[0];
  });
  expect(await Promise.all(sums)).toEqual([2, 6, 6, 16]);
  await Promise.all(worlds.map((worldRanks) => worldRanks[Symbol.asyncDispose]()));
});

test("ranks with different instruction sets are rejected with an error that names MOSAIC_ISA", async () => {
  const sets = ["avx512", "avx512", "avx2"];
  const openWithIsa = (isaOfRank: (rank: number) => string) =>
    world(3, { timeout: 20, device: (rank) => Object.assign(new TestDevice(), { instructionSet: isaOfRank(rank) }) });
  await expect(openWithIsa((rank) => sets[rank]!)).rejects.toThrow(
    /rank [0-2]: expected the same instruction set on all ranks, received avx\d+ on this rank and avx\d+ on rank [0-2]; set MOSAIC_ISA/,
  );
  for (const ctx of await openWithIsa(() => "avx2")) await ctx.close();
});
