import type { Chunk, Chunks } from "../chunks.ts";
import type { Chosen } from "../route/choose.ts";
import { runsWhere } from "../runs.ts";

// Every rank knows what every query chunk chose, so each works out alone what it sends and receives.

/** A chunk for consecutive batch elements, [b0, b1). */
export interface Run {
  readonly chunk: Chunk;
  readonly b0: number;
  readonly b1: number;
}

/** A message of K and V: a run that goes to or comes from a rank. */
export interface Edge extends Run {
  readonly peer: number;
}

/** What a rank sends and receives; the list that `a` sends to `b` is, in order, what `b` receives from `a`. */
export interface Edges {
  readonly sends: readonly Edge[];
  readonly receives: readonly Edge[];
}

/** A query chunk of this rank that looks at another chunk. */
export interface Look extends Run {
  /** The number of the query chunk among this rank's. */
  readonly query: number;
}

/** What is wanted now, and what was before: ranks still have that. */
export interface Wanted {
  readonly chosen: Chosen;
  readonly before: readonly Chosen[];
}

/** This rank's messages. */
export function edgesOf(wanted: Wanted, chunks: Chunks): Edges {
  const { rank, ranks, all, own } = chunks;
  const foreign = all.filter(({ owner }) => owner !== rank);
  const others = Array.from({ length: ranks }, (_, other) => other).filter((other) => other !== rank);
  return {
    receives: wantedBy(rank, foreign, { wanted, chunks }).map((run) => ({ ...run, peer: run.chunk.owner })),
    sends: others.flatMap((peer) => wantedBy(peer, own, { wanted, chunks }).map((run) => ({ ...run, peer }))),
  };
}

/** Which of some chunks a rank must be sent, by rising chunk and batch element; each once, however many of its own look. */
function wantedBy(
  rank: number,
  some: readonly Chunk[],
  { wanted: { chosen, before }, chunks: { all } }: { wanted: Wanted; chunks: Chunks },
): Run[] {
  const queries = all.filter(({ owner }) => owner === rank);
  const looks = (by: Chosen, j: number, b: number): boolean => queries.some(({ index }) => by[b]![index]!.includes(j));
  return runsOf(some, chosen.length, (j, b) => looks(chosen, j, b) && !before.some((by) => looks(by, j, b)));
}

/** What this rank's query chunks look at among the chunks that `has` names, those of the first before those of the second. */
export function looksOf(chosen: Chosen, { all, own }: Chunks, has: (chunk: Chunk, b: number) => boolean): Look[] {
  return own.flatMap(({ index }, query) =>
    runsOf(all, chosen.length, (j, b) => chosen[b]![index]!.includes(j) && has(all[j]!, b)).map((run) => ({
      ...run,
      query,
    })),
  );
}

/** The chunks and batch elements for which a rule holds. */
function runsOf(some: readonly Chunk[], batch: number, holds: (chunk: number, b: number) => boolean): Run[] {
  return some.flatMap((chunk) => runsWhere(batch, (b) => holds(chunk.index, b)).map(([b0, b1]) => ({ chunk, b0, b1 })));
}
