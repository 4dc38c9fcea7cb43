import { ClosedError, fromArray, PeerLostError, type Tensor, type Transfer } from "@mosaic/core";
import { type Case, check, checkEqual, checkThrows } from "../check.ts";
import type { MakeWorld } from "../world.ts";
import { checkMessage, waitForError, expectError, openTestWorld, readOutcome } from "./test-world.ts";

/** Ranks that leave while others still need them, and groups that are closed. `late`: see `lateNotice`. */
export function shutdownCases(makeWorld: MakeWorld, late: boolean): Case[] {
  return [
    {
      name: "after a rank exits, its messages arrive and collectives that need it fail",
      run: () => rankExits(makeWorld, { next: (tensor) => ({ tensor, from: 0 }), late: false }),
    },
    {
      name: "after a rank exits, its messages arrive and messages to it fail",
      run: () => rankExits(makeWorld, { next: (tensor) => ({ tensor, to: 0 }), late }),
    },
    { name: "groups without the rank that exited continue", run: () => otherGroupsContinue(makeWorld) },
    { name: "closing completes posted collectives, even if kernels delay them", run: () => closeDrains(makeWorld) },
    { name: "a closed group rejects calls, and closing is idempotent", run: () => checkRepeatedClose(makeWorld) },
    {
      name: "a rank that closes in the middle of a collective is reported with its position",
      run: () => closeTimesOut(makeWorld),
    },
    {
      name: "ranks that close at different times do not wait for each other",
      run: () => checkSequentialClose(makeWorld),
    },
  ];
}

interface ExitOptions {
  /** What rank 1 needs of rank 0 once that has left. */
  readonly next: (tensor: Tensor) => Transfer;
  /** Whether rank 1 may be notified of it only after it has gone on. */
  readonly late: boolean;
}

async function rankExits(makeWorld: MakeWorld, { next, late }: ExitOptions): Promise<void> {
  await using stage = await openTestWorld(makeWorld, { size: 3 });
  const [sender, receiver] = [stage.groups[0]!, stage.groups[1]!];
  const sent = fromArray(sender.device, [1, 2], [2]);
  const received = fromArray(receiver.device, [0, 0], [2]);
  sender.sendRecv([{ tensor: sent, to: 1 }]);
  receiver.sendRecv([{ tensor: received, from: 0 }]).wait();
  await sender[Symbol.asyncDispose]();
  checkEqual(await received.read(), [1, 2], "the received values");
  const post = (): void => receiver.sendRecv([next(received)], { label: "ring(sp)" }).wait();
  if (!late) post();
  const message = expectError(await (late ? waitForError(receiver, post) : readOutcome(received)), PeerLostError);
  const when = late ? "(in|before) sendRecv #[2-9]\\d*" : "in sendRecv #2";
  const reported = `^ring\\(sp\\): rank 0 exited after sendRecv #1 \\(world\\); rank 1 needed it ${when} \\(world\\)$`;
  checkMessage(message, new RegExp(reported));
}

async function otherGroupsContinue(makeWorld: MakeWorld): Promise<void> {
  await using stage = await openTestWorld(makeWorld, { size: 4 });
  const pairs = await Promise.all(stage.groups.map((group) => group.split(group.rank % 2)));
  await stage.groups[3]![Symbol.asyncDispose]();
  const even = [0, 2].map((rank) => ({ pair: pairs[rank]!, x: fromArray(stage.devices[rank]!, [rank + 1], [1]) }));
  for (const { pair, x } of even) pair.allReduce(x).wait();
  for (const { x } of even) checkEqual(await x.read(), [4], "the sum over the remaining ranks");
  pairs[1]!.barrier().wait();
  await checkThrows(() => stage.devices[1]!.stream.synchronize(), "PeerLostError", /rank 3 exited/);
}

async function closeDrains(makeWorld: MakeWorld): Promise<void> {
  await using stage = await openTestWorld(makeWorld, { size: 2 });
  const xs = stage.devices.map((device, rank) => fromArray(device, [rank + 1], [1]));
  const release = await stage.hold(stage.devices);
  for (const [rank, group] of stage.groups.entries()) group.allReduce(xs[rank]!).wait();
  const reads = Promise.all(xs.map((x) => x.read()));
  const closing = stage.close();
  release();
  await closing;
  checkEqual(
    (await reads).map(([first]) => first!),
    [3, 3],
    "collectives posted before closing",
  );
}

async function checkRepeatedClose(makeWorld: MakeWorld): Promise<void> {
  await using stage = await openTestWorld(makeWorld, { size: 2 });
  const pair = await Promise.all(stage.groups.map((group) => group.split(7, "pair")));
  const x = fromArray(stage.devices[0]!, [1], [1]);
  await pair[0]![Symbol.asyncDispose]();
  await checkThrows(() => pair[0]!.allReduce(x), "ClosedError", /pair.*expected an open group/);
  await stage.close();
  await stage.close();
  for (const group of [stage.groups[0]!, pair[1]!]) {
    await checkThrows(() => group.barrier(), "ClosedError", /expected an open group/);
  }
  await checkThrows(() => pair[1]!.split(0), "ClosedError", /expected an open group/);
}

async function closeTimesOut(makeWorld: MakeWorld): Promise<void> {
  await using stage = await openTestWorld(makeWorld, { size: 3 });
  const xs = [0, 1].map((rank) => fromArray(stage.devices[rank]!, [1], [1]));
  for (const [rank, x] of xs.entries()) stage.groups[rank]!.allReduce(x).wait();
  // Rank 2 never joins them: closing rank 0 waits a while, then gives up.
  await stage.groups[0]![Symbol.asyncDispose]();
  const [first, second] = await Promise.all(xs.map((x) => readOutcome(x)));
  const reported = [expectError(first, ClosedError), expectError(second, PeerLostError)];
  const expected = ["rank 0: closed during allReduce #1 (world)", "rank 0 exited during allReduce #1 (world)"];
  check(
    reported.join() === expected.join(),
    `expected "${expected.join('" and "')}", received "${reported.join('" and "')}"`,
  );
}

async function checkSequentialClose(makeWorld: MakeWorld): Promise<void> {
  await using stage = await openTestWorld(makeWorld, { size: 2 });
  stage.groups[0]!.barrier();
  const startTime = performance.now();
  for (const context of stage.contexts) await context.close();
  const seconds = (performance.now() - startTime) / 1000;
  check(seconds < 15, `expected closing to take less than 15 s, took ${seconds} s`);
}
