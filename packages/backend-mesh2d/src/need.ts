import { type Coordinate, isVisible, type PlacedCall, spansLength } from "@mosaic/core";
import { type Grid, keysAt, queriesAt } from "./grid.ts";

/** What needs are worked out from: the call as every rank knows it. */
export type NeedCall = PlacedCall;

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

/** The shards along an axis: the same for all ranks along it. */
export interface Shards {
  /** Rows in the chunk of each rank. */
  readonly queries: readonly number[];
  readonly keys: readonly number[];
  readonly sees: Need["sees"];
}

/** The shards of a call whose keys come from the coordinate `from`. */
export function shardsAlong(axis: string, size: number, call: NeedCall, from: Coordinate): Shards {
  const queries = offsets(size).map((rank) => call.queries.spans({ ...call.at, [axis]: rank }));
  const keys = offsets(size).map((rank) => call.keys.spans({ ...from, [axis]: rank }));
  return {
    queries: queries.map(spansLength),
    keys: keys.map(spansLength),
    sees: remember(size, (q, k) => isVisible(queries[q]!, keys[k]!, call.mask)),
  };
}

/** The needs of a rank of a grid. */
export function needOf(grid: Grid, rank: number, { queries, keys, sees }: Shards): Need {
  const { rows, columns } = grid;
  const wantsQueries = (who: number, of: number) => some(rows, (y) => sees(of, keysAt(grid, who, y)));
  const wantsKeys = (who: number, of: number) => some(columns, (x) => sees(queriesAt(grid, who, x), of));
  return {
    rank,
    sees,
    queries: {
      ...sideOf(rank, columns, { at: (x) => queriesAt(grid, rank, x), wants: wantsQueries }),
      length: (source) => queries[source]!,
    },
    keys: {
      ...sideOf(rank, rows, { at: (y) => keysAt(grid, rank, y), wants: wantsKeys }),
      length: (source) => keys[source]!,
    },
  };
}

/** The needs of all ranks along an axis, each worked out when it is first asked for. */
export class Needs {
  readonly #shards: Shards;
  readonly #known = new Map<number, Need>();

  constructor(shards: Shards) {
    this.#shards = shards;
  }

  of(grid: Grid, rank: number): Need {
    // Of one axis, a grid is known by its columns.
    const number = rank * (grid.rows * grid.columns + 1) + grid.columns;
    let need = this.#known.get(number);
    if (!need) this.#known.set(number, (need = needOf(grid, rank, this.#shards)));
    return need;
  }
}

/** What is needed along one dimension for any of several tiles. */
export function joinedSide(sides: readonly Side[]): Side {
  const [first, ...others] = sides;
  if (others.length === 0) return first!;
  const any = (of: (side: Side) => Side["sources"]) =>
    of(first!).map(
      (rank, offset) => rank ?? others.map((side) => of(side)[offset]).find((other) => other !== undefined),
    );
  return {
    sources: any(({ sources }) => sources),
    takers: any(({ takers }) => takers),
    length: (rank) => first!.length(rank),
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
  const sources: (number | undefined)[] = [];
  const takers: (number | undefined)[] = [];
  for (let offset = 0; offset < length; offset++) {
    const [source, taker] = [at(offset), at(-offset)];
    sources.push(wants(rank, source) ? source : undefined);
    takers.push(offset > 0 && wants(taker, rank) ? taker : undefined);
  }
  return { sources, takers };
}

function offsets(length: number): number[] {
  return Array.from({ length }, (_, offset) => offset);
}

function some(length: number, is: (offset: number) => boolean): boolean {
  for (let offset = 0; offset < length; offset++) if (is(offset)) return true;
  return false;
}

/** Each pair is asked for several times, and the answer is a walk over spans and slices. */
function remember(size: number, relation: Relation): Relation {
  const [unknown, no, yes] = [0, 1, 2];
  const known = new Uint8Array(size * size);
  return (a, b) => {
    const pair = a * size + b;
    if (known[pair] === unknown) known[pair] = relation(a, b) ? yes : no;
    return known[pair] === yes;
  };
}
