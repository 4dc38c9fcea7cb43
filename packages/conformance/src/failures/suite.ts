import {
  type Context,
  type Device,
  DeviceError,
  fromArray,
  PeerLostError,
  defineOptions,
  option,
  type OptionsOf,
} from "@mosaic/core";
import { type Case, check, checkThrows } from "../check.ts";
import type { MakeWorld } from "../world.ts";
import { deadlineCases } from "./deadlines.ts";
import { shutdownCases } from "./shutdown.ts";
import { mismatchCases } from "./mismatches.ts";
import { recordedCallCases } from "./recorded-calls.ts";
import { expectError, openTestWorld, readOutcome } from "./test-world.ts";
import { checkMakeWorld } from "../suite-options.ts";

export const failureSuiteOptions = defineOptions("failureSuite", {
  /**
   * Whether ranks may continue for a while after a mistake that their transport can execute anyway, and fail after they
   * have read. Such mistakes are calls that differ but move the same number of bytes, and messages to a rank that has
   * exited. If false, the next read must fail. Default false.
   */
  lateNotice: option.boolean({ default: false }),
});
/** Options of `failureSuite`, in which implementations may differ. */
export type FailureSuiteOptions = OptionsOf<typeof failureSuiteOptions>;

/**
 * Returns test cases of failures among ranks of one process, which every implementation of collectives must pass.
 * Mismatched calls are reported on all ranks with the calls of both sides, even if ranks differ only in recorded calls.
 * A timeout error lists each rank's position. The peers of a failed device report its error as the cause. If a rank
 * exits, only ranks that need it fail. Closing completes all collectives that can complete. No rank waits forever, and
 * none reads values that have not arrived. `processSuite` has the cases that need processes.
 *
 * A case that waits for a timeout or closes ranks in the middle of a collective takes seconds.
 *
 * @example
 * ```ts
 * import { world } from "@mosaic/collectives-local";
 * import { failureSuite } from "@mosaic/conformance";
 * import { cpu } from "@mosaic/kernels-cpu";
 * const cases = failureSuite((size, { wrapDevice, ...options }) =>
 *   world(size, { ...options, device: () => wrapDevice(cpu({ threads: 1 })) }),
 * );
 * await cases.find(({ name }) => name === "mismatched shapes: the error on every rank reports both ranks and their shapes")!.run();
 * ```
 */
export function failureSuite(makeWorld: MakeWorld, options?: FailureSuiteOptions): Case[] {
  checkMakeWorld("failureSuite", makeWorld);
  const { lateNotice } = failureSuiteOptions.parse(options);
  return [
    ...mismatchCases(makeWorld, lateNotice),
    ...recordedCallCases(makeWorld),
    ...deadlineCases(makeWorld),
    ...deviceFailureCases(makeWorld),
    ...shutdownCases(makeWorld, lateNotice),
  ];
}

/** Returns cases of device failures: the device's rank reports the device error, and other ranks report its cause. */
function deviceFailureCases(makeWorld: MakeWorld): Case[] {
  return [
    {
      name: "after a device failure, its rank reports the device error and its peers a PeerLostError with the cause",
      run: () => checkDeviceFailsBeforePost(makeWorld),
    },
    {
      name: "a device failure while other ranks wait for the next collective of its rank",
      run: () => checkDeviceFailsDuringCollective(makeWorld),
    },
    {
      name: "a device failure is reported by collectives that wait for its peers, in groups without its rank",
      run: () => checkDeviceFailureReachesOtherGroups(makeWorld),
    },
  ];
}

async function checkDeviceFailsBeforePost(makeWorld: MakeWorld): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 3 });
  const xs = testWorld.devices.map((device) => fromArray(device, [1], [1]));
  const cause = await failDevice(testWorld.devices[1]!);
  for (const [rank, group] of testWorld.groups.entries()) group.allReduce(xs[rank]!).wait();
  const outcomes = await Promise.all(xs.map((x) => readOutcome(x)));
  check(
    expectError(outcomes[1], DeviceError) === cause,
    `rank 1: expected the device error "${cause}", received ${outcomes[1]}`,
  );
  for (const rank of [0, 2]) checkFailureMessage(expectError(outcomes[rank], PeerLostError), cause);
}

async function checkDeviceFailsDuringCollective(makeWorld: MakeWorld): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 2 });
  const [firstContext, secondContext] = testWorld.contexts as [Context, Context];
  const [a, b] = [fromArray(firstContext, [1], [1]), fromArray(secondContext, [1], [1])];
  firstContext.world.allReduce(a).wait();
  const pendingOutcome = readOutcome(a);
  const cause = await failDevice(secondContext.device);
  secondContext.world.allReduce(b).wait();
  expectError(await readOutcome(b), DeviceError);
  checkFailureMessage(expectError(await pendingOutcome, PeerLostError), cause);
}

/** Rank 3 shares groups with ranks 1 and 2 only. Rank 0 waits for rank 1, which fails because of rank 3. */
async function checkDeviceFailureReachesOtherGroups(makeWorld: MakeWorld): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 4, mesh: { node: 2, gpu: 2 } });
  const xs = testWorld.devices.map((device) => fromArray(device, [1], [1]));
  const cause = await failDevice(testWorld.devices[3]!);
  const startTime = performance.now();
  for (const rank of [3, 1]) testWorld.contexts[rank]!.mesh.group("node").allReduce(xs[rank]!).wait();
  testWorld.contexts[0]!.mesh.group("gpu").allReduce(xs[0]!).wait();
  const outcomes = await Promise.all([0, 1].map((rank) => readOutcome(xs[rank]!)));
  for (const outcome of outcomes) {
    const message = expectError(outcome, PeerLostError);
    const expected = `rank 3 failed before allReduce #1 (node): ${cause}`;
    check(message === expected, `expected "${expected}", received "${message}"`);
  }
  const seconds = (performance.now() - startTime) / 1e3;
  check(seconds < 10, `expected the error of rank 3 in less than 10 s, received it after ${seconds} s`);
}

/** Checks the error that reports the device failure of rank 1. */
function checkFailureMessage(message: string, cause: string): void {
  const expected = `rank 1 failed before allReduce #1 (world): ${cause}`;
  check(message === expected, `expected "${expected}", received "${message}"`);
}

/** Makes a device fail, by an index out of range, which fails on every device. Returns the error message. */
async function failDevice(device: Device): Promise<string> {
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
