import { CollectiveMismatchError, type Context, fromArray, type ProcessGroup } from "@mosaic/core";
import { type Case, check, checkThrows } from "../check.ts";
import type { MakeWorld } from "../world.ts";
import { checkMessage, waitForError, expectError, openTestWorld, type ReadOutcome } from "./test-world.ts";

/** Returns cases of calls recorded in the history of a group that differ between ranks although all messages match. */
export function recordedCallCases(makeWorld: MakeWorld): Case[] {
  return [
    {
      name: "mismatched recorded calls are reported at the next message",
      run: () => checkMismatchAtMessage(makeWorld),
    },
    { name: "mismatched recorded calls are reported at a barrier", run: () => checkMismatchAtBarrier(makeWorld) },
    {
      name: "mismatched recorded calls of a subgroup are reported at a barrier of the world",
      run: () => checkMismatchAtWorldBarrier(makeWorld),
    },
    {
      name: "a call recorded on one rank only is reported at a barrier, with the calls of the other ranks",
      run: () => checkExtraCall(makeWorld),
    },
    {
      name: "mismatched recorded calls are reported on a rank that receives no message",
      run: () => checkMismatchWithoutMessage(makeWorld),
    },
    {
      name: "mismatched recorded calls are reported after many matching calls",
      run: () => checkEarlierMismatch(makeWorld),
    },
    {
      name: "mismatched recorded calls are reported when ranks close at the same time",
      run: () => checkMismatchAtClose(makeWorld, "together"),
    },
    {
      name: "mismatched recorded calls are reported when ranks close one after the other",
      run: () => checkMismatchAtClose(makeWorld, "one after the other"),
    },
    {
      name: "mismatched recorded calls of a split group are reported at close",
      run: () => checkSplitGroupAtClose(makeWorld),
    },
    { name: "mismatched call counts are accepted at close", run: () => checkCallCounts(makeWorld) },
    {
      name: "mismatched recorded calls are not reported at close after a failure",
      run: () => checkCloseAfterFailure(makeWorld),
    },
    {
      name: "matching recorded calls between messages of some ranks are accepted",
      run: () => checkAgreement(makeWorld),
    },
    { name: "an invalid call description throws an error", run: () => checkInvalidDescription(makeWorld) },
  ];
}

const mismatchRemedy = "all ranks of a group must call the same collectives in the same order, with the same shapes";

/** Checks that an error names the calls of both sides, which differ on rank 1. `init` records one in the world before. */
function checkMismatchMessage(outcome: ReadOutcome | undefined, group = "world"): void {
  const message = expectError(outcome, CollectiveMismatchError);
  const mismatchedRankPattern = `rank 1 (is )?at call #[12] \\(${group}\\): attention, mask causal`;
  const otherRanksPattern = `rank [0-9] (is )?at call #[12] \\(${group}\\): attention, mask full`;
  checkMessage(
    message,
    new RegExp(
      `^(${mismatchedRankPattern}, ${otherRanksPattern}|${otherRanksPattern}, ${mismatchedRankPattern}); ${mismatchRemedy}$`,
    ),
  );
}

function recordCall(group: ProcessGroup, isMismatchedRank: boolean): void {
  group.recordCall(`attention, mask ${isMismatchedRank ? "causal" : "full"}`);
}

async function checkMismatchAtMessage(makeWorld: MakeWorld): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 2 });
  const outcomes = testWorld.groups.map((group) => {
    const [sendBuffer, receiveBuffer] = [fromArray(group.device, [1], [1]), fromArray(group.device, [0], [1])];
    const exchange = (): void =>
      group
        .sendRecv([
          { tensor: sendBuffer, to: 1 - group.rank },
          { tensor: receiveBuffer, from: 1 - group.rank },
        ])
        .wait();
    return waitForError(
      group,
      () => {
        recordCall(group, group.rank === 1);
        exchange();
      },
      exchange,
    );
  });
  for (const outcome of await Promise.all(outcomes)) checkMismatchMessage(outcome);
}

async function checkMismatchAtBarrier(makeWorld: MakeWorld): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 3 });
  const outcomes = testWorld.groups.map((group) => {
    recordCall(group, group.rank === 1);
    return waitForError(group, () => group.barrier().wait());
  });
  for (const outcome of await Promise.all(outcomes)) checkMismatchMessage(outcome);
}

/** Calls differ in the subgroup of ranks 0 and 1 only. The other subgroup fails too, because barriers join the two. */
async function checkMismatchAtWorldBarrier(makeWorld: MakeWorld): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 4, mesh: { dp: 2, sp: 2 } });
  const outcomes = testWorld.contexts.map(({ mesh, world, rank }) => {
    recordCall(mesh.group("sp"), rank === 1);
    return waitForError(world, () => world.barrier().wait());
  });
  for (const outcome of await Promise.all(outcomes)) checkMismatchMessage(outcome, "sp");
}

async function checkExtraCall(makeWorld: MakeWorld): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 2 });
  const outcomes = testWorld.groups.map((group) => {
    recordCall(group, false);
    if (group.rank === 1) group.recordCall("attention backward");
    return waitForError(group, () => group.barrier().wait());
  });
  for (const outcome of await Promise.all(outcomes)) {
    const message = expectError(outcome, CollectiveMismatchError);
    checkMessage(message, "rank 0 is at barrier #1 (world), rank 1 at call #3 (world): attention backward; ");
  }
}

/** Rank 0 sends to rank 1 and receives nothing from it, as with a causal mask. */
async function checkMismatchWithoutMessage(makeWorld: MakeWorld): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 2 });
  const outcomes = testWorld.groups.map((group) => {
    const x = fromArray(group.device, [1], [1]);
    return waitForError(
      group,
      () => {
        recordCall(group, group.rank === 1);
        group.sendRecv([group.rank === 0 ? { tensor: x, to: 1 } : { tensor: x, from: 0 }]).wait();
      },
      () => group.barrier().wait(),
    );
  });
  for (const outcome of await Promise.all(outcomes)) checkMismatchMessage(outcome);
}

/** Records more calls than logs keep. The error cannot name the call that differed, but must report that one did. */
async function checkEarlierMismatch(makeWorld: MakeWorld): Promise<void> {
  const contexts = await makeWorld(2, { wrapDevice: (device) => device, timeout: 20 });
  for (const { world, rank } of contexts) {
    recordCall(world, rank === 1);
    for (let i = 0; i < 100; i++) world.recordCall("the same");
  }
  const closeResults = await Promise.allSettled(contexts.map((context) => context.close()));
  const failedResults = closeResults.filter((result) => result.status === "rejected");
  check(failedResults.length > 0, "expected close to fail on at least one rank, received no failure");
  for (const { reason } of failedResults) expectError(reason as Error, CollectiveMismatchError);
}

async function checkMismatchAtClose(
  makeWorld: MakeWorld,
  closeOrder: "together" | "one after the other",
): Promise<void> {
  const contexts = await makeWorld(3, { wrapDevice: (device) => device, timeout: 20 });
  for (const { world, rank } of contexts) recordCall(world, rank === 1);
  const closeResults: PromiseSettledResult<void>[] = [];
  if (closeOrder === "together")
    closeResults.push(...(await Promise.allSettled(contexts.map((context) => context.close()))));
  else for (const context of contexts) closeResults.push(...(await Promise.allSettled([context.close()])));
  checkCloseFailures(closeResults, "world");
}

async function checkSplitGroupAtClose(makeWorld: MakeWorld): Promise<void> {
  const contexts = await makeWorld(4, { wrapDevice: (device) => device, timeout: 20, mesh: { dp: 2, sp: 2 } });
  for (const { mesh, rank } of contexts) recordCall(mesh.group("sp"), rank === 1);
  checkCloseFailures(await Promise.allSettled(contexts.map((context) => context.close())), "sp");
}

/** Checks errors of close. The last rank to close compares its calls with the others', so earlier ranks may succeed. */
function checkCloseFailures(closeResults: readonly PromiseSettledResult<void>[], group: string): void {
  const failedResults = closeResults.filter((each) => each.status === "rejected");
  check(failedResults.length > 0, "expected close to fail on at least one rank, received no failure");
  for (const { reason } of failedResults) checkMismatchMessage(reason as Error, group);
}

/** A program may end early on one rank, perhaps with an error. Missing calls at the end are not a mismatch. */
async function checkCallCounts(makeWorld: MakeWorld): Promise<void> {
  for (const extraCallRank of [0, 1]) {
    const contexts = await makeWorld(2, { wrapDevice: (device) => device, timeout: 20 });
    for (const { world, rank } of contexts)
      for (let i = 0; i < (rank === extraCallRank ? 40 : 1); i++) recordCall(world, false);
    for (const context of contexts) await context.close();
  }
}

/** The failure was reported already, so that closing must not report another one. */
async function checkCloseAfterFailure(makeWorld: MakeWorld): Promise<void> {
  const contexts = await makeWorld(2, { wrapDevice: (device) => device, timeout: 0.3 });
  const [firstContext, secondContext] = contexts as [Context, Context];
  const x = fromArray(firstContext, [1], [1]);
  firstContext.world.allReduce(x).wait();
  await checkThrows(() => x.read(), "CollectiveTimeoutError", /rank 0 waits in allReduce #1/);
  // Rank 1 has not been notified of the failure yet, or throws the same error.
  try {
    recordCall(secondContext.world, true);
  } catch (error) {
    checkMessage((error as Error).message, "rank 0 waits in allReduce #1");
  }
  for (const context of contexts) await context.close();
}

async function checkAgreement(makeWorld: MakeWorld): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 4, mesh: { dp: 2, sp: 2 } });
  const pendingReads = testWorld.contexts.map(async ({ mesh, world, rank, device }) => {
    const x = fromArray(device, [rank], [1]);
    for (let step = 0; step < 50; step++) {
      for (const group of [mesh.group("sp"), mesh.group("dp"), world]) {
        group.recordCall(() => `step ${step} of ${group.name}, ranks ${group.ranks}`);
        const isFirstRank = group.rank === 0;
        if (group.rank < 2) group.sendRecv([isFirstRank ? { tensor: x, to: 1 } : { tensor: x, from: 0 }]).wait();
      }
      if (step % 7 === 0) mesh.group("sp").barrier().wait();
      if (step % 20 === 0) world.barrier().wait();
    }
    return x.read();
  });
  for (const [value] of await Promise.all(pendingReads))
    check(value === 0, `value sent by rank 0: expected 0, received ${value}`);
}

async function checkInvalidDescription(makeWorld: MakeWorld): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 2 });
  const [group] = testWorld.groups as [ProcessGroup];
  for (const invalidDescription of ["", undefined, 7]) {
    await checkThrows(
      () => group.recordCall(invalidDescription as string),
      "OptionError",
      /recordCall \(world\): expected a desc/,
    );
  }
  await testWorld.close();
  await checkThrows(() => group.recordCall("late"), "ClosedError", /recordCall \(world\): expected an open group/);
}
