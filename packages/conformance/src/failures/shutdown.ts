import { ClosedError, fromArray, PeerLostError, type Tensor, type Transfer } from "@mosaic/core";
import { type Case, check, checkEqual, checkThrows } from "../check.ts";
import type { MakeWorld } from "../world.ts";
import { checkMessage, waitForError, expectError, openTestWorld, readOutcome } from "./test-world.ts";

/** Returns cases of ranks that exit while others need them, and of closed groups. `isNoticeLate`: see `lateNotice`. */
export function shutdownCases(makeWorld: MakeWorld, isNoticeLate: boolean): Case[] {
  return [
    {
      name: "after a rank exits, its messages arrive and collectives that need it fail",
      run: () =>
        checkRankExits(makeWorld, { createNextTransfer: (tensor) => ({ tensor, from: 0 }), isNoticeLate: false }),
    },
    {
      name: "after a rank exits, its messages arrive and messages to it fail",
      run: () => checkRankExits(makeWorld, { createNextTransfer: (tensor) => ({ tensor, to: 0 }), isNoticeLate }),
    },
    { name: "groups without the rank that exited continue", run: () => checkOtherGroupsContinue(makeWorld) },
    {
      name: "closing completes posted collectives, even if kernels delay them",
      run: () => checkCloseDrains(makeWorld),
    },
    { name: "a closed group rejects calls, and closing is idempotent", run: () => checkRepeatedClose(makeWorld) },
    {
      name: "a rank that closes in the middle of a collective is reported with its position",
      run: () => checkCloseTimesOut(makeWorld),
    },
    {
      name: "ranks that close at different times do not wait for each other",
      run: () => checkSequentialClose(makeWorld),
    },
  ];
}

interface ExitOptions {
  /** Creates the transfer between ranks 1 and 0 that rank 1 posts after rank 0 has exited. */
  readonly createNextTransfer: (tensor: Tensor) => Transfer;
  /** Whether rank 1 may continue for a while before it is notified of the exit. */
  readonly isNoticeLate: boolean;
}

async function checkRankExits(makeWorld: MakeWorld, { createNextTransfer, isNoticeLate }: ExitOptions): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 3 });
  const [sender, receiver] = [testWorld.groups[0]!, testWorld.groups[1]!];
  const sendBuffer = fromArray(sender.device, [1, 2], [2]);
  const receiveBuffer = fromArray(receiver.device, [0, 0], [2]);
  sender.sendRecv([{ tensor: sendBuffer, to: 1 }]);
  receiver.sendRecv([{ tensor: receiveBuffer, from: 0 }]).wait();
  await sender[Symbol.asyncDispose]();
  checkEqual(await receiveBuffer.read(), [1, 2], "the received values");
  const post = (): void => receiver.sendRecv([createNextTransfer(receiveBuffer)], { label: "ring(sp)" }).wait();
  if (!isNoticeLate) post();
  const message = expectError(
    await (isNoticeLate ? waitForError(receiver, post) : readOutcome(receiveBuffer)),
    PeerLostError,
  );
  const callPattern = isNoticeLate ? "(in|before) sendRecv #[2-9]\\d*" : "in sendRecv #2";
  const errorPattern = `^ring\\(sp\\): rank 0 exited after sendRecv #1 \\(world\\); rank 1 needed it ${callPattern} \\(world\\)$`;
  checkMessage(message, new RegExp(errorPattern));
}

async function checkOtherGroupsContinue(makeWorld: MakeWorld): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 4 });
  const pairGroups = await Promise.all(testWorld.groups.map((group) => group.split(group.rank % 2)));
  await testWorld.groups[3]![Symbol.asyncDispose]();
  const evenRanks = [0, 2].map((rank) => ({
    pairGroup: pairGroups[rank]!,
    x: fromArray(testWorld.devices[rank]!, [rank + 1], [1]),
  }));
  for (const { pairGroup: pair, x } of evenRanks) pair.allReduce(x).wait();
  for (const { x } of evenRanks) checkEqual(await x.read(), [4], "the sum over the remaining ranks");
  pairGroups[1]!.barrier().wait();
  await checkThrows(() => testWorld.devices[1]!.stream.synchronize(), "PeerLostError", /rank 3 exited/);
}

async function checkCloseDrains(makeWorld: MakeWorld): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 2 });
  const xs = testWorld.devices.map((device, rank) => fromArray(device, [rank + 1], [1]));
  const release = await testWorld.blockDevices(testWorld.devices);
  for (const [rank, group] of testWorld.groups.entries()) group.allReduce(xs[rank]!).wait();
  const reads = Promise.all(xs.map((x) => x.read()));
  const closePromise = testWorld.close();
  release();
  await closePromise;
  checkEqual(
    (await reads).map(([first]) => first!),
    [3, 3],
    "collectives posted before closing",
  );
}

async function checkRepeatedClose(makeWorld: MakeWorld): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 2 });
  const pairGroups = await Promise.all(testWorld.groups.map((group) => group.split(7, "pair")));
  const x = fromArray(testWorld.devices[0]!, [1], [1]);
  await pairGroups[0]![Symbol.asyncDispose]();
  await checkThrows(() => pairGroups[0]!.allReduce(x), "ClosedError", /pair.*expected an open group/);
  await testWorld.close();
  await testWorld.close();
  for (const group of [testWorld.groups[0]!, pairGroups[1]!]) {
    await checkThrows(() => group.barrier(), "ClosedError", /expected an open group/);
  }
  await checkThrows(() => pairGroups[1]!.split(0), "ClosedError", /expected an open group/);
}

async function checkCloseTimesOut(makeWorld: MakeWorld): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 3 });
  const xs = [0, 1].map((rank) => fromArray(testWorld.devices[rank]!, [1], [1]));
  for (const [rank, x] of xs.entries()) testWorld.groups[rank]!.allReduce(x).wait();
  // Rank 2 never joins the collective, so closing rank 0 waits for a while and then times out.
  await testWorld.groups[0]![Symbol.asyncDispose]();
  const [firstOutcome, secondOutcome] = await Promise.all(xs.map((x) => readOutcome(x)));
  const messages = [expectError(firstOutcome, ClosedError), expectError(secondOutcome, PeerLostError)];
  const expected = ["rank 0: closed during allReduce #1 (world)", "rank 0 exited during allReduce #1 (world)"];
  check(
    messages.join() === expected.join(),
    `expected "${expected.join('" and "')}", received "${messages.join('" and "')}"`,
  );
}

async function checkSequentialClose(makeWorld: MakeWorld): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 2 });
  testWorld.groups[0]!.barrier();
  const startTime = performance.now();
  for (const context of testWorld.contexts) await context.close();
  const seconds = (performance.now() - startTime) / 1000;
  check(seconds < 15, `expected closing to take less than 15 s, received ${seconds} s`);
}
