import type { Case } from "../case.ts";
import type { MakeWorld } from "../world.ts";
import { deadlineCases } from "./deadlines.ts";
import { departureCases } from "./departures.ts";
import { deviceFailureCases } from "./devices.ts";
import { mismatchCases } from "./mismatches.ts";
import { recordedCallCases } from "./recorded-calls.ts";

export interface FailureSuiteOptions {
  /**
   * Whether ranks may go on for a while after a mistake that their transport can carry out all the same, and fail after they have
   * read: calls that differ, but move as many bytes; a message to a rank that has left. Default false: the next
   * read fails.
   */
  readonly lateNotice?: boolean;
}

/**
 * What every implementation of collectives must do when something goes wrong among ranks of one process: calls that differ
 * are named on all ranks, with what both sides called, also if they differ only in calls that they record; a deadline that passes names each rank's position; a device that
 * fails is the cause that its peers are given; a rank that leaves takes along only who needs it; closing finishes what can be
 * finished. No rank ever waits for ever, and none reads what has not come. `processSuite` has what only processes can do.
 *
 * A case that ends a deadline or closes ranks in the middle of a collective takes seconds.
 *
 * @example
 * ```ts
 * import { world } from "@mosaic/collectives-local";
 * import { failureSuite } from "@mosaic/conformance";
 * import { cpu } from "@mosaic/kernels-cpu";
 * const cases = failureSuite((size, { wrapDevice, ...options }) =>
 *   world(size, { ...options, device: () => wrapDevice(cpu({ threads: 1 })) }),
 * );
 * await cases.find(({ name }) => name === "another shape on one rank is a mismatch on all")!.run();
 * ```
 */
export function failureSuite(makeWorld: MakeWorld, { lateNotice = false }: FailureSuiteOptions = {}): Case[] {
  return [
    ...mismatchCases(makeWorld, lateNotice),
    ...recordedCallCases(makeWorld),
    ...deadlineCases(makeWorld),
    ...deviceFailureCases(makeWorld),
    ...departureCases(makeWorld, lateNotice),
  ];
}
