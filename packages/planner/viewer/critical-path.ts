import { type Kinds, lowerBound, type Rank, type Run } from "./model.ts";

/** An event of a run: the index of its rank in the run, and its index in the rank. */
export interface EventReference {
  readonly rank: number;
  readonly event: number;
}

/**
 * Returns the chain of events that ended last, from its end to its beginning: the events that each one waited for. This
 * is the event of the same rank that ended last before it began; for a collective that a rank of its group joined
 * later, the event before that rank's. It is derived from times alone and so works for measured timelines, too; a wait
 * that no event shows is not on it.
 */
export function criticalPath(run: Run, kinds: Kinds): readonly EventReference[] {
  const endOrders = run.ranks.map(({ events }) => new EndOrder(events.start, events.end));
  const collectives = new Collectives(run, kinds);
  let currentEvent = findLastEvent(run);
  const path: EventReference[] = [];
  while (currentEvent) {
    path.push(currentEvent);
    const lastMember: EventReference = collectives.findLastMember(currentEvent) ?? currentEvent;
    const { start } = run.ranks[lastMember.rank]!.events;
    const event = endOrders[lastMember.rank]!.findLastEndedBefore(start[lastMember.event]!);
    currentEvent = event === undefined ? undefined : { rank: lastMember.rank, event };
  }
  return path;
}

function findLastEvent({ ranks }: Run): EventReference | undefined {
  let last: EventReference | undefined;
  let latestEnd = Number.NEGATIVE_INFINITY;
  for (const [rank, { events }] of ranks.entries()) {
    for (let event = 0; event < events.count; event++) {
      if (events.end[event]! <= latestEnd || events.end[event]! <= events.start[event]!) continue;
      latestEnd = events.end[event]!;
      last = { rank, event };
    }
  }
  return last;
}

/** Times are rounded to nanoseconds, so an event may begin this long before the end of the one that it waited for. */
const ROUNDING_TOLERANCE_SECONDS = 1.5e-9;

/** The events of a rank ordered by end. Events that take no time are omitted, because they delay nothing. */
class EndOrder {
  readonly #order: readonly number[];
  readonly #ends: Float64Array;
  readonly #starts: Float64Array;

  constructor(start: Float64Array, end: Float64Array) {
    this.#starts = start;
    this.#order = Array.from(start.keys())
      .filter((i) => end[i]! - start[i]! > ROUNDING_TOLERANCE_SECONDS)
      .sort((a, b) => end[a]! - end[b]!);
    this.#ends = Float64Array.from(this.#order, (i) => end[i]!);
  }

  /** Returns the last of the events that ended by a time and began before it. */
  findLastEndedBefore(time: number): number | undefined {
    for (
      let orderIndex = lowerBound(this.#ends, time + ROUNDING_TOLERANCE_SECONDS) - 1;
      orderIndex >= 0;
      orderIndex--
    ) {
      const event = this.#order[orderIndex]!;
      if (this.#starts[event]! < time) return event;
    }
    return undefined;
  }
}

/** Events of several ranks that are one collective: the n-th of its kind on each rank of a group. */
class Collectives {
  readonly #run: Run;
  readonly #members = new Map<string, EventReference[]>();
  readonly #keys: readonly (readonly string[])[];

  constructor(run: Run, kinds: Kinds) {
    this.#run = run;
    this.#keys = run.ranks.map((rank, index) => this.#nameGroups(rank, index, kinds));
  }

  /** Returns the event of the same collective that began last, if that was after this one began and before it ended. */
  findLastMember(eventReference: EventReference): EventReference | undefined {
    const key = this.#keys[eventReference.rank]![eventReference.event];
    const { start, end } = this.#run.ranks[eventReference.rank]!.events;
    let latestJoinTime = start[eventReference.event]! + ROUNDING_TOLERANCE_SECONDS;
    let lastMember: EventReference | undefined;
    for (const member of key === undefined ? [] : this.#members.get(key)!) {
      const joinTime = this.#run.ranks[member.rank]!.events.start[member.event]!;
      if (joinTime <= latestJoinTime || joinTime >= end[eventReference.event]!) continue;
      latestJoinTime = joinTime;
      lastMember = member;
    }
    return lastMember;
  }

  #nameGroups({ events, at }: Rank, rank: number, kinds: Kinds): readonly string[] {
    const callCounts = new Map<string, number>();
    const keys: string[] = [];
    for (let event = 0; event < events.count; event++) {
      const { lane, name, label = "" } = kinds.allKinds[events.kind[event]!]!;
      // Runs of merged events have no index in common with other ranks.
      if (lane !== "communication" || events.merged[event]! > 1) continue;
      const group = `${name} ${label} ${describeGroup(label, at)}`;
      const call = callCounts.get(group) ?? 0;
      callCounts.set(group, call + 1);
      const key = `${group} #${call}`;
      keys[event] = key;
      const members = this.#members.get(key);
      if (members) members.push({ rank, event });
      else this.#members.set(key, [{ rank, event }]);
    }
    return keys;
  }
}

/**
 * Returns the coordinates that ranks of a group share: all but those along the axes named by the label, such as
 * `ring(sp)`.
 */
function describeGroup(label: string, at: Rank["at"]): string {
  const axes = new Set(label.match(/\w+/g));
  const groupAxes = Object.keys(at).filter((axis) => axes.has(axis));
  if (groupAxes.length === 0) return "";
  return Object.entries(at)
    .filter(([axis]) => !groupAxes.includes(axis))
    .map(([axis, coordinate]) => `${axis} ${coordinate}`)
    .join(" ");
}
