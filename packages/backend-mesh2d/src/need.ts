import { type Call, type Coordinate, isVisible, spansLength } from "@mosaic/core";
import { type Grid, keysAt, queriesAt } from "./grid.ts";

/** What needs are worked out from: the call as every rank knows it. */
export type NeedCall = Pick<Call, "at" | "mask" | "queries" | "keys">;

/** One dimension of a rank's tile: the queries along its row, or the keys along its column. Ranks are those of the group. */
export interface Side {
  /** By offset: whose chunk this rank computes on; undefined where the mask leaves nothing to compute. Its own at 0. */
  readonly sources: readonly (number | undefined)[];
  /** By offset: who has this rank's chunk at that offset and computes on it; undefined at 0. */
  readonly takers: readonly (number | undefined)[];
  /** Rows in the chunk of a rank. */
  length(rank: number): number;
}

/** The tile of one rank, and what others want of it. Every rank works it out alone, from the layouts: nothing is sent. */
export interface Need {
  readonly rank: number;
  readonly queries: Side;
  readonly keys: Side;
  /** Whether any query of one rank's chunk sees any key of another's. */
  sees(queries: number, keys: number): boolean;
}

/** The needs of a call whose keys come from the coordinate `from`, along an axis whose ranks form a grid. */
export function needOf({ axis, grid }: { axis: string; grid: Grid }, call: NeedCall, from: Coordinate): Need {
  const { rows, columns } = grid;
  const queries = (rank: number) => call.queries.spans({ ...call.at, [axis]: rank });
  const keys = (rank: number) => call.keys.spans({ ...from, [axis]: rank });
  const sees = remember(rows * columns, (q, k) => isVisible(queries(q), keys(k), call.mask));
  const rank = from[axis]!;
  const wantsQueries = (who: number, of: number) => offsets(rows).some((y) => sees(of, keysAt(grid, who, y)));
  const wantsKeys = (who: number, of: number) => offsets(columns).some((x) => sees(queriesAt(grid, who, x), of));
  return {
    rank,
    sees,
    queries: {
      ...sideOf(rank, columns, { at: (x) => queriesAt(grid, rank, x), wants: wantsQueries }),
      length: (source) => spansLength(queries(source)),
    },
    keys: {
      ...sideOf(rank, rows, { at: (y) => keysAt(grid, rank, y), wants: wantsKeys }),
      length: (source) => spansLength(keys(source)),
    },
  };
}

type Relation = (a: number, b: number) => boolean;

interface Line {
  /** The rank at an offset from this one. */
  at(offset: number): number;
  /** Whether one rank computes on the chunk of another. */
  readonly wants: Relation;
}

function sideOf(rank: number, length: number, { at, wants }: Line): Omit<Side, "length"> {
  const source = (offset: number) => (wants(rank, at(offset)) ? at(offset) : undefined);
  const taker = (offset: number) => (offset > 0 && wants(at(-offset), rank) ? at(-offset) : undefined);
  return { sources: offsets(length).map(source), takers: offsets(length).map(taker) };
}

function offsets(length: number): number[] {
  return Array.from({ length }, (_, offset) => offset);
}

/** Each pair is asked for several times, and the answer is a walk over spans and slices. */
function remember(size: number, relation: Relation): Relation {
  const known = new Map<number, boolean>();
  return (a, b) => {
    const pair = a * size + b;
    let answer = known.get(pair);
    if (answer === undefined) {
      answer = relation(a, b);
      known.set(pair, answer);
    }
    return answer;
  };
}
