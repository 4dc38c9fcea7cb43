import type { AttentionRecord } from "../record.ts";
import type { Batch } from "./batch.ts";
import type { Fault } from "./fault.ts";
import type { Streams } from "./streams.ts";
import { findUnmatched } from "./unmatched.ts";

/**
 * Why collectives are left that nothing moves: messages whose other half never comes, or else ranks that wait for each
 * other in a circle; nothing if none are left.
 */
export function whyStuck(record: AttentionRecord, streams: Streams): Fault[] {
  const heads = streams.queues.map(({ first }) => first).filter((head) => head !== undefined);
  if (heads.length === 0) return [];
  const unmatched = findUnmatched(record);
  if (unmatched.length > 0) return unmatched;
  const byRank = new Map(heads.map((head) => [head.rank, head]));
  const cycle = findCycle(heads, (head) => next(streams, byRank, head));
  if (!cycle)
    return heads.filter((head) => next(streams, byRank, head).length === 0).map((head) => lonely(streams, head));
  const links = cycle.map((head, i) => `${streams.textOf(head)} waits for rank ${cycle[(i + 1) % cycle.length]!.rank}`);
  return [{ kind: "cycle", rank: cycle[0]!.rank, message: links.join("; ") }];
}

/** The collectives whose turn it is on the ranks that one waits for; none where a rank has nothing under way. */
function next(streams: Streams, heads: ReadonlyMap<number, Batch>, head: Batch): Batch[] {
  return streams
    .peersOf(head)
    .map((rank) => heads.get(rank))
    .filter((batch) => batch !== undefined);
}

function lonely(streams: Streams, head: Batch): Fault {
  const peers = streams.peersOf(head);
  return {
    kind: "message",
    rank: head.rank,
    message: `${streams.textOf(head)}: rank ${peers.join(", ")} does not come to it`,
  };
}

function findCycle(all: readonly Batch[], nextOf: (batch: Batch) => Batch[]): Batch[] | undefined {
  const done = new Set<Batch>();
  for (const start of all) {
    const path: { readonly batch: Batch; readonly rest: Batch[] }[] = [];
    const enter = (batch: Batch): void => {
      done.add(batch);
      path.push({ batch, rest: nextOf(batch) });
    };
    if (!done.has(start)) enter(start);
    while (path.length > 0) {
      const candidate = path.at(-1)!.rest.pop();
      if (!candidate) {
        path.pop();
        continue;
      }
      const from = path.findIndex(({ batch }) => batch === candidate);
      if (from >= 0) return path.slice(from).map(({ batch }) => batch);
      if (!done.has(candidate)) enter(candidate);
    }
  }
  return undefined;
}
