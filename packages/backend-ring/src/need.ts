import { type AttentionBackend, type Call, type Coordinate, isVisible, omitAxes, spansLength } from "@mosaic/core";

// The ranks of a ring differ along one axis. With a communicating inner backend each of them stands for a team: the ranks
// that the inner backend gathers keys from. A chunk is what one rank of a team gives; alone, a rank is its own team.

/** Who needs whose keys along a ring. Every rank works it out alone, from the layouts: nothing is sent for it. */
export interface Need {
  /** Ranks along the axis. */
  readonly size: number;
  /** Whether the team of `rank` has anything to compute on the keys of `source`'s team: then all of it must step there. */
  visits(rank: number, source: number): boolean;
  /** Whether the team of `rank` sees a key of the chunk of `source`: then it must get there. Implies `visits`. */
  fetches(rank: number, source: number): boolean;
  /** Keys in the chunk of `source`. */
  length(source: number): number;
}

/** What needs are worked out from: the call as every rank of the ring knows it. */
export type NeedCall = Pick<Call, "at" | "mask" | "queries" | "keys">;

/** The part of a ring that decides about needs. */
export interface NeedRing {
  readonly axis: string;
  readonly size: number;
  readonly inner: AttentionBackend;
}

/** The needs of a call whose keys come from the coordinate `from`. */
export function needOf({ axis, size, inner }: NeedRing, call: NeedCall, from: Coordinate): Need {
  const team = omitAxes(call.at, inner.axes);
  // Queries that are whole along the axis are the same for every rank.
  const queries = each((rank) => call.queries.spans(axis in call.at ? { ...team, [axis]: rank } : team));
  const chunk = each((source) => call.keys.spans({ ...from, [axis]: source }));
  const whole = omitAxes(from, inner.axes);
  const teamKeys = each((source) => call.keys.spans({ ...whole, [axis]: source }));
  const fetches = remember(size, (rank, source) => isVisible(queries(rank), chunk(source), call.mask));
  const visits = remember(size, (rank, source) => isVisible(queries(rank), teamKeys(source), call.mask));
  return {
    size,
    fetches,
    visits: inner.axes.length === 0 ? fetches : visits,
    length: each((source) => spansLength(chunk(source))),
  };
}

/** What belongs to each rank, looked up once. */
function each<T>(find: (rank: number) => T): (rank: number) => T {
  const known: T[] = [];
  return (rank) => (known[rank] ??= find(rank));
}

type Relation = (rank: number, source: number) => boolean;

/** Each pair is asked for several times a step, and the answer is a walk over spans and slices. */
function remember(size: number, relation: Relation): Relation {
  const [unknown, no, yes] = [0, 1, 2];
  const known = new Uint8Array(size * size);
  return (rank, source) => {
    const pair = rank * size + source;
    if (known[pair] === unknown) known[pair] = relation(rank, source) ? yes : no;
    return known[pair] === yes;
  };
}
