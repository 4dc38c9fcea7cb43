import { CollectiveTimeoutError, type Coordinate, fromArray } from "@mosaic/core";
import { type Case, check, checkThrows } from "../check.ts";
import type { MakeWorld } from "../world.ts";
import { checkMessage, expectError, openTestWorld, readOutcome } from "./test-world.ts";

/** Collectives that take too long, and the errors of the other ranks then. */
export function deadlineCases(makeWorld: MakeWorld): Case[] {
  return [
    { name: "a late rank: the error lists the position of each rank", run: () => checkLateRank(makeWorld) },
    { name: "one rank without calls, and one in a different collective", run: () => axisGroups(makeWorld) },
    {
      name: "one rank without calls since its groups opened, and one in a different collective",
      run: () => axisGroups(makeWorld, { dp: 1, sp: 3 }),
    },
    {
      name: "ranks that called sendRecv different numbers of times wait for a late rank without a mismatch",
      run: () => lateAfterMessages(makeWorld),
    },
    {
      name: "a collective posted after a failure throws the original error",
      run: () => afterTimeout(makeWorld),
    },
    {
      name: "after a failure, memory is released and ranks can connect again",
      run: () => newWorldAfterTimeout(makeWorld),
    },
  ];
}

/** Rank 1 computes for long, and rank 2 has gone another way. */
async function checkLateRank(makeWorld: MakeWorld): Promise<void> {
  await using stage = await openTestWorld(makeWorld, { size: 4, timeout: 0.4 });
  const xs = stage.devices.map((device) => fromArray(device, [1], [1]));
  const release = await stage.hold([stage.devices[1]!]);
  for (const [rank, group] of stage.groups.entries()) {
    group.barrier({ label: "step 7" });
    if (rank !== 2) group.allReduce(xs[rank]!).wait();
  }
  const outcomes = await Promise.all([xs[0]!, xs[3]!].map((x) => readOutcome(x)));
  release();
  for (const outcome of outcomes) {
    const message = expectError(outcome, CollectiveTimeoutError);
    checkMessage(message, /^step 7: timed out after 0\.4 s: rank [0-3] waits in barrier #1 \(world\)/);
    checkMessage(message, "rank 1 is computing");
    checkMessage(message, "rank 0 waits in");
  }
}

/** Groups along the axes of a mesh are collectives, too: they count. */
async function axisGroups(makeWorld: MakeWorld, mesh?: Coordinate): Promise<void> {
  await using stage = await openTestWorld(makeWorld, { size: 3, timeout: 0.5, ...(mesh ? { mesh } : {}) });
  const xs = stage.devices.map((device) => fromArray(device, [1], [1]));
  stage.groups[0]!.allReduce(xs[0]!).wait();
  stage.groups[1]!.sendRecv([{ tensor: xs[1]!, from: 2 }]).wait();
  const message = expectError(await readOutcome(xs[0]!), CollectiveTimeoutError);
  const number = mesh ? 2 : 1;
  // The rank that times out first notifies the other.
  const seen = [
    `rank 0 waits in allReduce #${number} (world); rank 1 is at sendRecv #${number} (world)`,
    `rank 1 waits in sendRecv #${number} (world); rank 0 is at allReduce #${number} (world)`,
  ];
  const reported = seen.some((each) => message.startsWith(`timed out after 0.5 s: ${each}`));
  check(reported, `expected a message with "${seen.join('" or "')}", received "${message}"`);
  checkMessage(
    message,
    mesh
      ? "rank 2 is in no collective, last collective: split #1 (world)"
      : "rank 2 is in no collective, last collective: none",
  );
}

/** Numbers of operations differ between ranks; the collective is one. The late rank computes for longer than positions take. */
async function lateAfterMessages(makeWorld: MakeWorld): Promise<void> {
  await using stage = await openTestWorld(makeWorld, { size: 3 });
  const xs = stage.devices.map((device, rank) => fromArray(device, [rank + 1], [1]));
  for (const [rank, group] of stage.groups.slice(0, 2).entries()) {
    const y = fromArray(stage.devices[rank]!, [0], [1]);
    group.sendRecv(rank === 0 ? [{ tensor: y, to: 1 }] : [{ tensor: y, from: 0 }]).wait();
  }
  const release = await stage.hold([stage.devices[2]!]);
  for (const [rank, group] of stage.groups.entries()) group.allReduce(xs[rank]!).wait();
  setTimeout(release, 400);
  for (const x of xs) {
    const outcome = await readOutcome(x);
    check(!(outcome instanceof Error) && outcome[0] === 6, `expected 6, received ${outcome}`);
  }
}

async function afterTimeout(makeWorld: MakeWorld): Promise<void> {
  await using stage = await openTestWorld(makeWorld, { size: 2, timeout: 0.3 });
  const group = stage.groups[0]!;
  const x = fromArray(stage.devices[0]!, [1], [1]);
  group.allReduce(x).wait();
  expectError(await readOutcome(x), CollectiveTimeoutError);
  const cause = /timed out after 0\.3 s: rank 0 waits in allReduce #1/;
  await checkThrows(() => group.allReduce(x), "CollectiveTimeoutError", cause);
  await checkThrows(() => group.barrier(), "CollectiveTimeoutError", cause);
  await checkThrows(() => group.split(0), "CollectiveTimeoutError", cause);
}

async function newWorldAfterTimeout(makeWorld: MakeWorld): Promise<void> {
  for (const fails of [true, false]) {
    await using stage = await openTestWorld(makeWorld, { size: 2, timeout: fails ? 0.3 : 20 });
    const before = stage.devices.map((device) => device.memory().allocated);
    const xs = stage.devices.map((device) => fromArray(device, [1, 2], [2]));
    for (const [rank, group] of stage.groups.entries()) {
      if (!fails || rank === 0) group.allReduce(xs[rank]!).wait();
    }
    const outcome = await readOutcome(xs[0]!);
    if (fails) expectError(outcome, CollectiveTimeoutError);
    else check(!(outcome instanceof Error) && outcome[1] === 4, `expected [2,4], received ${outcome}`);
    for (const x of xs) x[Symbol.dispose]();
    for (const [rank, device] of stage.devices.entries()) {
      const kept = device.memory().allocated - before[rank]!;
      check(kept === 0, `rank ${rank}: ${kept} bytes are still allocated`);
    }
  }
}
