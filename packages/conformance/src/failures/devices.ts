import { type Context, type Device, DeviceError, fromArray, PeerLostError } from "@mosaic/core";
import type { Case } from "../case.ts";
import { check, checkThrows } from "../check.ts";
import type { MakeWorld } from "../world.ts";
import { messageOf, openStage, outcomeOf } from "./stage.ts";

/** Devices that fail: their own rank gets their own error, the others get its cause. */
export function deviceFailureCases(makeWorld: MakeWorld): Case[] {
  return [
    {
      name: "a failed device fails its own rank with its own error, and its peers with PeerLostError that gives the cause",
      run: () => failedBefore(makeWorld),
    },
    {
      name: "a device that fails while others wait for this rank's next collective",
      run: () => failsMeanwhile(makeWorld),
    },
  ];
}

async function failedBefore(makeWorld: MakeWorld): Promise<void> {
  await using stage = await openStage(makeWorld, { size: 3 });
  const xs = stage.devices.map((device) => fromArray(device, [1], [1]));
  const cause = await fail(stage.devices[1]!);
  for (const [rank, group] of stage.groups.entries()) group.allReduce(xs[rank]!).wait();
  const outcomes = await Promise.all(xs.map((x) => outcomeOf(x)));
  check(messageOf(outcomes[1], DeviceError) === cause, `expected its own error, received ${outcomes[1]}`);
  for (const rank of [0, 2]) checkCause(messageOf(outcomes[rank], PeerLostError), cause);
}

async function failsMeanwhile(makeWorld: MakeWorld): Promise<void> {
  await using stage = await openStage(makeWorld, { size: 2 });
  const [first, second] = stage.contexts as [Context, Context];
  const [a, b] = [fromArray(first, [1], [1]), fromArray(second, [1], [1])];
  first.world.allReduce(a).wait();
  const waiting = outcomeOf(a);
  const cause = await fail(second.device);
  second.world.allReduce(b).wait();
  messageOf(await outcomeOf(b), DeviceError);
  checkCause(messageOf(await waiting, PeerLostError), cause);
}

/** The error of rank 1. */
function checkCause(message: string, cause: string): void {
  const expected = `rank 1 failed before allReduce #1 (world): ${cause}`;
  check(message === expected, `expected "${expected}", received "${message}"`);
}

/** Fails a device as any device can be failed: by an index that names nothing. Gives the message. */
async function fail(device: Device): Promise<string> {
  const table = fromArray(device, [1, 2, 3], [3, 1]);
  const index = fromArray(device, [3], [1]);
  device.kernels.gatherRows(device.empty([1, 1], "float32"), table, index);
  let message = "";
  await checkThrows(
    () =>
      device.stream.synchronize().catch((error: Error) => {
        message = error.message;
        throw error;
      }),
    "DeviceError",
    /gatherRows/,
  );
  return message;
}
