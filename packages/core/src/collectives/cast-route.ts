import { expectValue } from "../errors.ts";
import {
  countRows,
  inRingOrder,
  locateReceivedRows,
  type PeerRanges,
  type RankGroupCast,
  rankGroupCast,
} from "./cast-plan.ts";
import type { GroupCastPlan, ProcessGroup, RowRange } from "./process-group.ts";

/** Rows that a rank receives in one message, and their destinations as row ranges of `out`. */
interface ReceivedRows {
  readonly sender: number;
  readonly destinations: readonly RowRange[];
}

/**
 * The messages of a rank in a groupCast, per tensor. There are one or two hops; the second hop forwards what arrived in
 * the first. Messages between two ranks are in the same order on both.
 */
export interface GroupCastRoute {
  /** First hop, in ring order: rows of this rank's input. */
  readonly sends: readonly PeerRanges[];
  /** First hop: the rows that arrive, and the ranks of this host to which the whole message is forwarded. */
  readonly receives: readonly (ReceivedRows & { readonly forwardReceivers: readonly number[] })[];
  /** Second hop: the rows that other ranks of this host forward. Absent if the route has one hop. */
  readonly forwardedRows?: readonly ReceivedRows[];
}

/**
 * Returns the route in which every row is received directly from its owner. Routes are not cached, because a thousand
 * ranks in one process have millions of messages.
 */
export function directRoute(cast: RankGroupCast, rank: number): GroupCastRoute {
  return {
    sends: inRingOrder(cast.sends, rank),
    receives: locateReceivedRows(cast).map(({ peer, ranges }) => {
      return { sender: peer, destinations: ranges, forwardReceivers: EMPTY_RECEIVERS };
    }),
  };
}

const EMPTY_RECEIVERS: readonly number[] = [];

/**
 * Returns `hosts` if there are several hosts and at least one has several ranks, otherwise undefined, because no row
 * could then be shared by ranks of another host.
 *
 * @example
 * ```ts
 * import { sharedHosts } from "@mosaic/core/context-parallel";
 * sharedHosts([0, 0, 1, 1]); // => [0, 0, 1, 1]
 * sharedHosts([0, 1, 2]); // => undefined
 * ```
 * @throws OptionError unless `hosts` is an array or undefined.
 */
export function sharedHosts(hosts: readonly number[] | undefined): readonly number[] | undefined {
  expectValue(
    "sharedHosts",
    hosts === undefined || Array.isArray(hosts),
    "an array of host indices, one per rank",
    hosts,
  );
  const numHosts = new Set(hosts).size;
  return numHosts > 1 && numHosts < hosts!.length ? hosts : undefined;
}

const hostRoutes = new WeakMap<GroupCastPlan, WeakMap<readonly number[], HostRoutes>>();

/**
 * Returns the route in which a row is sent to another host once: to one of the ranks there that require it, which
 * forwards it to the others. Undefined if hosts are unknown, if there is only one, or if each has only one rank.
 */
export function hierarchicalRoute(
  plan: GroupCastPlan,
  cast: RankGroupCast,
  { rank, hosts: rankHosts }: Pick<ProcessGroup, "rank" | "hosts">,
): GroupCastRoute | undefined {
  const hosts = sharedHosts(rankHosts);
  if (!hosts) return undefined;
  let routesByHosts = hostRoutes.get(plan);
  if (!routesByHosts) hostRoutes.set(plan, (routesByHosts = new WeakMap()));
  let routes = routesByHosts.get(hosts);
  if (!routes) routesByHosts.set(hosts, (routes = new HostRoutes(plan, hosts)));
  return routes.getRoute(rank, cast);
}

/** Rows of a sender that the same set of ranks of a host requires. */
interface SharedRows {
  readonly ranges: readonly RowRange[];
  readonly receivers: readonly number[];
}

/** The routes of all ranks for one plan. */
class HostRoutes {
  readonly #plan: GroupCastPlan;
  readonly #hosts: readonly number[];
  /** The ranks of each host, and the index of each rank within its host. */
  readonly #ranksByHost = new Map<number, number[]>();
  readonly #indexInHost: readonly number[];
  /** For each sender and host, the sender's rows that ranks of the host require. */
  readonly #sharedRowsByPair = new Map<number, Map<number, readonly SharedRows[]>>();
  readonly #routes: GroupCastRoute[] = [];

  constructor(plan: GroupCastPlan, hosts: readonly number[]) {
    this.#plan = plan;
    this.#hosts = hosts;
    this.#indexInHost = hosts.map((host, rank) => {
      const hostMembers = this.#ranksByHost.get(host) ?? [];
      this.#ranksByHost.set(host, hostMembers);
      return hostMembers.push(rank) - 1;
    });
  }

  getRoute(rank: number, cast: RankGroupCast): GroupCastRoute {
    return (this.#routes[rank] ??= this.#buildRoute(rank, cast));
  }

  #buildRoute(rank: number, cast: RankGroupCast): GroupCastRoute {
    const sends: PeerRanges[] = [];
    for (const host of this.#ranksByHost.keys()) {
      for (const { ranges, receivers } of this.#sharedRows(rank, host))
        sends.push({ peer: this.#relayRank(rank, receivers), ranges });
    }
    sends.sort((a, b) => a.peer - b.peer);
    const receives: (ReceivedRows & { forwardReceivers: number[] })[] = [];
    const forwardedRows: ReceivedRows[] = [];
    let firstRow = 0;
    for (const { peer: sender, ranges: receivedRanges } of cast.receives) {
      for (const { ranges, receivers } of this.#sharedRows(sender, this.#hosts[rank]!)) {
        if (!receivers.includes(rank)) continue;
        const destinations = locateRanges(ranges, receivedRanges, firstRow);
        const relayRank = this.#relayRank(sender, receivers);
        if (relayRank !== rank) forwardedRows.push({ sender: relayRank, destinations });
        else receives.push({ sender, destinations, forwardReceivers: receivers.filter((each) => each !== rank) });
      }
      firstRow += countRows(receivedRanges);
    }
    return { sends: inRingOrder(sends, rank), receives, forwardedRows };
  }

  /**
   * Returns the receiver with the sender's index within its host, or the next one after it. Ranks of equal index share
   * a network rail.
   */
  #relayRank(sender: number, receivers: readonly number[]): number {
    const numMembers = this.#ranksByHost.get(this.#hosts[receivers[0]!]!)!.length;
    const hostOffset = (rank: number): number =>
      (this.#indexInHost[rank]! - (this.#indexInHost[sender]! % numMembers) + numMembers) % numMembers;
    return receivers.reduce((nearestRank, rank) => (hostOffset(rank) < hostOffset(nearestRank) ? rank : nearestRank));
  }

  /**
   * Returns the rows of a sender that the ranks of a host require, grouped by receivers. On the sender's own host, each
   * rank is a group.
   */
  #sharedRows(sender: number, host: number): readonly SharedRows[] {
    let rowsByHost = this.#sharedRowsByPair.get(sender);
    if (!rowsByHost) this.#sharedRowsByPair.set(sender, (rowsByHost = new Map()));
    let sharedRows = rowsByHost.get(host);
    if (!sharedRows) {
      const rowsByMember = this.#ranksByHost.get(host)!.map((member) => {
        return { ranges: this.#plan.ranges(sender, member), receivers: [member] };
      });
      const requiredRows = rowsByMember.filter(({ ranges }) => ranges.length > 0);
      sharedRows =
        host === this.#hosts[sender] || requiredRows.length < 2 ? requiredRows : groupByReceivers(requiredRows);
      rowsByHost.set(host, sharedRows);
    }
    return sharedRows;
  }
}

/**
 * Splits the ranges of several receivers where any of them begins or ends, and groups the parts by their sets of
 * receivers.
 */
function groupByReceivers(requiredRows: readonly SharedRows[]): SharedRows[] {
  const boundaries = new Set(
    requiredRows.flatMap(({ ranges }) => ranges.flatMap(({ start, length }) => [start, start + length])),
  );
  const sortedBoundaries = [...boundaries].toSorted((a, b) => a - b);
  const nextRangeIndices = requiredRows.map(() => 0);
  const groups = new Map<string, { readonly ranges: RowRange[]; readonly receivers: number[] }>();
  for (const [i, start] of sortedBoundaries.slice(0, -1).entries()) {
    const receivers: number[] = [];
    for (const [index, { ranges, receivers: rangeReceivers }] of requiredRows.entries()) {
      while (nextRangeIndices[index]! < ranges.length && rangeEnd(ranges[nextRangeIndices[index]!]!) <= start)
        nextRangeIndices[index]!++;
      const range = ranges[nextRangeIndices[index]!];
      if (range && range.start <= start) receivers.push(rangeReceivers[0]!);
    }
    if (receivers.length === 0) continue;
    const key = receivers.join();
    let group = groups.get(key);
    if (!group) groups.set(key, (group = { ranges: [], receivers }));
    appendRange(group.ranges, { start, length: sortedBoundaries[i + 1]! - start });
  }
  return [...groups.values()];
}

const rangeEnd = ({ start, length }: RowRange): number => start + length;

/** Appends a range, or extends the last range if the two are adjacent. */
function appendRange(ranges: RowRange[], range: RowRange): void {
  const lastRange = ranges.at(-1);
  if (lastRange && rangeEnd(lastRange) === range.start)
    ranges[ranges.length - 1] = { ...lastRange, length: lastRange.length + range.length };
  else ranges.push(range);
}

/**
 * Returns the row ranges of `out` for some rows of a sender. `out` contains `receivedRanges` of the sender
 * concatenated, starting at `firstRow`.
 */
function locateRanges(ranges: readonly RowRange[], receivedRanges: readonly RowRange[], firstRow: number): RowRange[] {
  const outRanges: RowRange[] = [];
  let [nextRangeIndex, rowsBefore] = [0, firstRow];
  for (const { start, length } of ranges) {
    while (rangeEnd(receivedRanges[nextRangeIndex]!) <= start) rowsBefore += receivedRanges[nextRangeIndex++]!.length;
    appendRange(outRanges, { start: rowsBefore + start - receivedRanges[nextRangeIndex]!.start, length });
  }
  return outRanges;
}

/**
 * Returns the number of rows of each message that a rank sends and receives in a groupCast. Uses two hops if `hosts`
 * allows them.
 *
 * @example
 * ```ts
 * import { groupCastMessageRows } from "@mosaic/core/context-parallel";
 * const ranges = (sender: number, receiver: number) => (sender === receiver ? [] : [{ start: 0, length: 1 + sender }]);
 * groupCastMessageRows({ size: 3, ranges }, { rank: 0, size: 3 }); // => { sent: [1, 1], received: [2, 3] }
 * ```
 * @throws OptionError for an invalid plan or group.
 */
export function groupCastMessageRows(
  plan: GroupCastPlan,
  group: Pick<ProcessGroup, "rank" | "size" | "hosts">,
): { readonly sent: readonly number[]; readonly received: readonly number[] } {
  const isValidGroup = Number.isSafeInteger(group?.rank) && Number.isSafeInteger(group.size);
  expectValue("groupCastMessageRows", isValidGroup, "a group { rank, size, hosts }", group);
  const cast = rankGroupCast("groupCastMessageRows", plan, group);
  const { sends, receives, forwardedRows = [] } = hierarchicalRoute(plan, cast, group) ?? directRoute(cast, group.rank);
  const forwardedRowCounts = receives.flatMap(({ destinations, forwardReceivers }) =>
    forwardReceivers.map(() => countRows(destinations)),
  );
  return {
    sent: [...sends.map(({ ranges }) => countRows(ranges)), ...forwardedRowCounts],
    received: [...receives, ...forwardedRows].map(({ destinations }) => countRows(destinations)),
  };
}
