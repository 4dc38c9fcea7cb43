import { countRows, type RankCast } from "./cast-plan.ts";
import type { GroupCastPlan, ProcessGroup, RowRange } from "./process-group.ts";

/** How rows come to a rank: from their owner, or in two hops by a rank of its own host. */
export interface CastRoute {
  /** All in one hop. */
  readonly isDirect: boolean;
  /** By rank, in the first hop: rows of this rank's input. */
  readonly sent: readonly (readonly RowRange[])[];
  /** By sender, in the first hop: how many rows. */
  readonly received: readonly number[];
  /** By sender, of the rows of the first hop: those for this rank. Absent: all of them. */
  readonly kept: readonly (readonly RowRange[] | undefined)[];
  /** Second hop: rows of a sender, as they have arrived, for a rank of this host. */
  readonly forwards: readonly { readonly to: number; readonly sender: number; readonly ranges: readonly RowRange[] }[];
  /** Second hop: by whom the rows of a sender come. */
  readonly forwarded: readonly { readonly from: number; readonly sender: number; readonly rows: number }[];
}

export function directRoute({ sent, received }: RankCast): CastRoute {
  return { isDirect: true, sent, received: received.map(countRows), kept: [], forwards: [], forwarded: [] };
}

const routes = new WeakMap<GroupCastPlan, WeakMap<readonly number[], CastRoute[]>>();

/** The route by which a row crosses to another host once; undefined where all ranks share one, or hosts are not known. */
export function hierarchicalRoute(
  plan: GroupCastPlan,
  { rank, hosts }: Pick<ProcessGroup, "rank" | "hosts">,
): CastRoute | undefined {
  if (!hosts || hosts.every((host) => host === hosts[0])) return undefined;
  let byHosts = routes.get(plan);
  if (!byHosts) routes.set(plan, (byHosts = new WeakMap()));
  let byRank = byHosts.get(hosts);
  if (!byRank) byHosts.set(hosts, (byRank = []));
  return (byRank[rank] ??= routeOverHosts(plan, rank, hosts));
}

function routeOverHosts(plan: GroupCastPlan, rank: number, hosts: readonly number[]): CastRoute {
  const membersOf = new Map<number, number[]>();
  for (const [member, host] of hosts.entries()) membersOf.set(host, [...(membersOf.get(host) ?? []), member]);
  const sent: RowRange[][] = hosts.map(() => []);
  for (const [host, members] of membersOf) {
    if (host === hosts[rank]) for (const member of members) sent[member] = [...plan.ranges(rank, member)];
    else for (const { relay, union } of relayed(plan, rank, members)) sent[relay] = union;
  }
  const received = hosts.map(() => 0);
  const kept: (readonly RowRange[] | undefined)[] = [];
  const forwards: { to: number; sender: number; ranges: readonly RowRange[] }[] = [];
  const forwarded: { from: number; sender: number; rows: number }[] = [];
  const neighbours = membersOf.get(hosts[rank]!)!;
  for (const sender of hosts.keys()) {
    if (hosts[sender] === hosts[rank]) {
      received[sender] = countRows(plan.ranges(sender, rank));
      continue;
    }
    for (const { relay, union, receivers } of relayed(plan, sender, neighbours)) {
      if (relay !== rank) {
        const rows = countRows(plan.ranges(sender, rank));
        if (rows > 0) forwarded.push({ from: relay, sender, rows });
        continue;
      }
      received[sender] = countRows(union);
      for (const to of receivers) {
        const ranges = within(union, plan.ranges(sender, to));
        if (to === rank) kept[sender] = ranges;
        else forwards.push({ to, sender, ranges });
      }
    }
  }
  return { isDirect: false, sent, received, kept, forwards, forwarded };
}

/** Which rank of a host receives what a sender of another host sends there, and for whom; none if nobody requires anything. */
function* relayed(
  plan: GroupCastPlan,
  sender: number,
  members: readonly number[],
): Generator<{ readonly relay: number; readonly union: RowRange[]; readonly receivers: readonly number[] }> {
  const receivers = members.filter((member) => plan.ranges(sender, member).length > 0);
  if (receivers.length === 0) return;
  const union = unionOf(receivers.flatMap((member) => plan.ranges(sender, member)));
  // One that requires rows itself; of several senders, one after the other.
  yield { relay: receivers[sender % receivers.length]!, union, receivers };
}

function unionOf(ranges: readonly RowRange[]): RowRange[] {
  const union: { start: number; length: number }[] = [];
  for (const { start, length } of ranges.toSorted((a, b) => a.start - b.start)) {
    const last = union.at(-1);
    if (last && start <= last.start + last.length) {
      last.length = Math.max(last.length, start + length - last.start);
    } else union.push({ start, length });
  }
  return union;
}

/** Where ranges lie once the ranges of a union, of which they are parts, are packed. */
function within(union: readonly RowRange[], ranges: readonly RowRange[]): RowRange[] {
  let [next, before] = [0, 0];
  return ranges.map(({ start, length }) => {
    while (union[next]!.start + union[next]!.length <= start) before += union[next++]!.length;
    return { start: before + start - union[next]!.start, length };
  });
}
