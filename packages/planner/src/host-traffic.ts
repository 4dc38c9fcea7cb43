import { expectValue } from "@mosaic/core";
import { listMessages } from "./count.ts";
import { Recorder, type RecordOptions } from "./record.ts";

/** Bytes that the ranks of one host send to ranks of other hosts in one attention. */
export interface HostTraffic {
  readonly forward: number;
  readonly backward: number;
}

/**
 * Counts what the ranks of host 0 send to other hosts in one attention, for each of several assignments of ranks to
 * hosts. An assignment lists the host number of each rank, row-major in `mesh`. For each assignment, the backend's
 * own code runs on the ranks of host 0 only. Collectives count as in `count`.
 *
 * @example
 * ```ts
 * import { ring } from "@mosaic/backend-ring";
 * import { countHostTraffic } from "@mosaic/planner";
 * const call = { backend: ring(), mesh: { sp: 4 }, tokens: 400, numHeads: 1, headDim: 8 };
 * // In the second arrangement neighbors in the ring are on different hosts: every hop goes between hosts.
 * countHostTraffic(call, [[0, 0, 1, 1], [0, 1, 0, 1]]).map(({ forward }) => forward); // => [9600, 19200]
 * ```
 * @throws OptionError as `record` does, and for assignments that do not have one host for each rank.
 */
export function countHostTraffic(
  options: RecordOptions,
  hostAssignments: readonly (readonly number[])[],
): readonly HostTraffic[] {
  const { size } = new Recorder("countHostTraffic", options);
  const areHostAssignments =
    Array.isArray(hostAssignments) &&
    hostAssignments.every((hosts: unknown) => Array.isArray(hosts) && hosts.length === size);
  expectValue(
    "countHostTraffic",
    areHostAssignments,
    `an array of arrays of ${size} hosts, one host per rank`,
    hostAssignments,
  );
  return hostAssignments.map((hosts) => {
    const recorder = new Recorder("countHostTraffic", { ...options, hosts });
    const total = { forward: 0, backward: 0 };
    for (const [rank, host] of hosts.entries()) {
      if (host !== 0) continue;
      const recordedRank = recorder.recordRank(rank);
      for (const { phase, peer, isSent, bytes } of listMessages(recorder.createRecord([recordedRank]), recordedRank)) {
        if (isSent && hosts[peer] !== 0) total[phase] += bytes;
      }
    }
    return total;
  });
}
