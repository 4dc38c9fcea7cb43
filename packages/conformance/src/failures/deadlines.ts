import { CollectiveTimeoutError, type Coordinate, fromArray } from "@mosaic/core";
import { type Case, check, checkThrows } from "../check.ts";
import type { MakeWorld } from "../world.ts";
import { checkMessage, expectError, openTestWorld, readOutcome } from "./test-world.ts";

/** Returns cases of collectives that time out, and of the errors on the other ranks. */
export function deadlineCases(makeWorld: MakeWorld): Case[] {
  return [
    { name: "a late rank: the error lists the position of each rank", run: () => checkLateRank(makeWorld) },
    {
      name: "the timeout error lists a rank without calls, and one in a different collective",
      run: () => checkTimeoutPositions(makeWorld),
    },
    {
      name: "the timeout error lists a rank without calls since its groups were created, and one in a different collective",
      run: () => checkTimeoutPositions(makeWorld, { dp: 1, sp: 3 }),
    },
    {
      name: "ranks that called sendRecv different numbers of times wait for a late rank without a mismatch",
      run: () => checkLateAfterMessages(makeWorld),
    },
    {
      name: "a collective posted after a failure throws the original error",
      run: () => checkAfterTimeout(makeWorld),
    },
    {
      name: "after a failure, memory is released and ranks can connect again",
      run: () => checkNewWorldAfterTimeout(makeWorld),
    },
  ];
}

/** Rank 1 is late because its stream is blocked, and rank 2 does not call allReduce. */
async function checkLateRank(makeWorld: MakeWorld): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 4, timeout: 0.4 });
  const xs = testWorld.devices.map((device) => fromArray(device, [1], [1]));
  const release = await testWorld.blockDevices([testWorld.devices[1]!]);
  for (const [rank, group] of testWorld.groups.entries()) {
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

/** Creating groups along the axes of a mesh counts as a collective. */
async function checkTimeoutPositions(makeWorld: MakeWorld, mesh?: Coordinate): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 3, timeout: 0.5, ...(mesh ? { mesh } : {}) });
  const xs = testWorld.devices.map((device) => fromArray(device, [1], [1]));
  testWorld.groups[0]!.allReduce(xs[0]!).wait();
  testWorld.groups[1]!.sendRecv([{ tensor: xs[1]!, from: 2 }]).wait();
  const message = expectError(await readOutcome(xs[0]!), CollectiveTimeoutError);
  const sequenceNumber = mesh ? 2 : 1;
  // The rank that times out first notifies the other.
  const expectedPositions = [
    `rank 0 waits in allReduce #${sequenceNumber} (world); rank 1 is at sendRecv #${sequenceNumber} (world)`,
    `rank 1 waits in sendRecv #${sequenceNumber} (world); rank 0 is at allReduce #${sequenceNumber} (world)`,
  ];
  const isPositionReported = expectedPositions.some((each) => message.startsWith(`timed out after 0.5 s: ${each}`));
  check(isPositionReported, `expected a message with "${expectedPositions.join('" or "')}", received "${message}"`);
  checkMessage(
    message,
    mesh
      ? "rank 2 is in no collective, last collective: split #1 (world)"
      : "rank 2 is in no collective, last collective: none",
  );
}

/**
 * Ranks have posted different numbers of operations, but call the same collective. The late rank computes for longer
 * than the exchange of positions takes.
 */
async function checkLateAfterMessages(makeWorld: MakeWorld): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 3 });
  const xs = testWorld.devices.map((device, rank) => fromArray(device, [rank + 1], [1]));
  for (const [rank, group] of testWorld.groups.slice(0, 2).entries()) {
    const y = fromArray(testWorld.devices[rank]!, [0], [1]);
    group.sendRecv(rank === 0 ? [{ tensor: y, to: 1 }] : [{ tensor: y, from: 0 }]).wait();
  }
  const release = await testWorld.blockDevices([testWorld.devices[2]!]);
  for (const [rank, group] of testWorld.groups.entries()) group.allReduce(xs[rank]!).wait();
  setTimeout(release, 400);
  for (const x of xs) {
    const outcome = await readOutcome(x);
    check(
      !(outcome instanceof Error) && outcome[0] === 6,
      `allReduce with a late rank: expected 6, received ${outcome}`,
    );
  }
}

async function checkAfterTimeout(makeWorld: MakeWorld): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 2, timeout: 0.3 });
  const group = testWorld.groups[0]!;
  const x = fromArray(testWorld.devices[0]!, [1], [1]);
  group.allReduce(x).wait();
  expectError(await readOutcome(x), CollectiveTimeoutError);
  const causePattern = /timed out after 0\.3 s: rank 0 waits in allReduce #1/;
  await checkThrows(() => group.allReduce(x), "CollectiveTimeoutError", causePattern);
  await checkThrows(() => group.barrier(), "CollectiveTimeoutError", causePattern);
  await checkThrows(() => group.split(0), "CollectiveTimeoutError", causePattern);
}

async function checkNewWorldAfterTimeout(makeWorld: MakeWorld): Promise<void> {
  for (const isTimeoutReached of [true, false]) {
    await using testWorld = await openTestWorld(makeWorld, { size: 2, timeout: isTimeoutReached ? 0.3 : 20 });
    const allocatedBytesBefore = testWorld.devices.map((device) => device.memory().allocated);
    const xs = testWorld.devices.map((device) => fromArray(device, [1, 2], [2]));
    for (const [rank, group] of testWorld.groups.entries()) {
      if (!isTimeoutReached || rank === 0) group.allReduce(xs[rank]!).wait();
    }
    const outcome = await readOutcome(xs[0]!);
    if (isTimeoutReached) expectError(outcome, CollectiveTimeoutError);
    else
      check(
        !(outcome instanceof Error) && outcome[1] === 4,
        `allReduce without a timeout: expected [2,4], received ${outcome}`,
      );
    for (const x of xs) x[Symbol.dispose]();
    for (const [rank, device] of testWorld.devices.entries()) {
      const leakedBytes = device.memory().allocated - allocatedBytesBefore[rank]!;
      check(leakedBytes === 0, `rank ${rank}: expected 0 more bytes allocated than before, received ${leakedBytes}`);
    }
  }
}
