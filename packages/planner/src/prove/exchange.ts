import type { Batch } from "./batch.ts";
import { Content, type Piece } from "./content.ts";
import type { RankMemory } from "./rank-memory.ts";

/** A collective's arguments: see `ops`. */
interface Shares {
  readonly out: number;
  readonly input: number;
  readonly root: number;
  readonly counts: readonly number[];
}

/**
 * Carries a collective out on what the memories of all its ranks hold; batches are by rank in the group. What a reduction
 * makes of rows that it knows is not followed: it is unknown after. Returns what does not fit, if anything.
 */
export function exchange(batches: readonly Batch[], memories: readonly RankMemory[]): string | undefined {
  const calls = batches.map(({ args: [, out, input, root, ...counts] }) => {
    return { out: out!, input: input!, root: root!, counts };
  });
  const memoryOf = (i: number): RankMemory => memories[batches[i]!.rank]!;
  const sent = calls.map(({ input }, i) => (input < 0 ? Content.empty : memoryOf(i).message(input)));
  switch (batches[0]!.op) {
    case "allGather":
      return allGather(calls, sent, memoryOf);
    case "allToAll":
      return allToAll(calls, sent, memoryOf);
    case "broadcast":
      for (const [i, { out, root }] of calls.entries()) if (i !== root) memoryOf(i).receive(out, sent[root]!);
      return undefined;
    case "barrier":
      return undefined;
    default:
      for (const [i, { out }] of calls.entries()) memoryOf(i).receive(out, Content.empty);
      return undefined;
  }
}

type MemoryOf = (member: number) => RankMemory;

function allGather(calls: readonly Shares[], sent: readonly Content[], memoryOf: MemoryOf): string | undefined {
  for (const [i, { out, counts }] of calls.entries()) {
    const wrong = counts.findIndex((count, j) => count !== sizeOf(memoryOf(j), calls[j]!.input));
    if (wrong >= 0) return `allGather: member ${i} expects ${counts[wrong]} elements of member ${wrong}`;
    const pieces: Piece[] = [];
    let start = 0;
    for (const [j, count] of counts.entries()) {
      pieces.push(...sent[j]!.shifted(start));
      start += count;
    }
    memoryOf(i).receive(out, new Content(pieces));
  }
  return undefined;
}

/** counts: elements sent to each, then received from each. */
function allToAll(calls: readonly Shares[], sent: readonly Content[], memoryOf: MemoryOf): string | undefined {
  const size = calls.length;
  for (const [i, { out, counts }] of calls.entries()) {
    const pieces: Piece[] = [];
    let start = 0;
    for (let j = 0; j < size; j++) {
      const theirs = calls[j]!.counts;
      const count = counts[size + j]!;
      if (theirs[i] !== count)
        return `allToAll: member ${i} expects ${count} elements of ${j}, which sends ${theirs[i]}`;
      const from = theirs.slice(0, i).reduce((sum, each) => sum + each, 0);
      pieces.push(...sent[j]!.range(from, from + count).shifted(start));
      start += count;
    }
    memoryOf(i).receive(out, new Content(pieces));
  }
  return undefined;
}

function sizeOf(memory: RankMemory, view: number): number {
  return memory.view(view).look.size;
}
