import { reductions } from "../symbolic/tape.ts";
import type { Batch } from "./batch.ts";
import { type Content, contentOf, nothingHeld, type Piece } from "./content.ts";
import type { RankMemory } from "./rank-memory.ts";
import { summed } from "./entries.ts";
import type { StreamMeans } from "./stream-means.ts";

/** What members of a collective send, by rank in the group, and where they take things. */
interface Meeting {
  readonly batches: readonly Batch[];
  readonly sent: readonly Content[];
  memoryOf(member: number): RankMemory;
}

/**
 * Carries a collective out on what the memories of all its ranks hold; batches are by rank in the group. Sums are followed;
 * what means and maxima make of rows is unknown after. Returns what does not fit, if anything.
 */
export function exchange(batches: readonly Batch[], means: StreamMeans): string | undefined {
  const memoryOf = (i: number): RankMemory => means.memories[batches[i]!.rank]!;
  const sent = batches.map(({ input }, i) => (input < 0 ? nothingHeld : memoryOf(i).message(input)));
  const meeting = { batches, sent, memoryOf };
  const mixed = differentDTypes(meeting);
  if (mixed) return mixed;
  const [first] = batches;
  switch (first!.op) {
    case "allGather":
      return allGather(meeting);
    case "allToAll":
      return allToAll(meeting);
    case "broadcast":
      return broadcast(meeting);
    case "allReduce":
    case "reduceScatter":
      return reduce(meeting, means);
    default:
      return undefined;
  }
}

function differentDTypes({ batches, memoryOf }: Meeting): string | undefined {
  const dtypes = batches.map(({ output }, i) => (output < 0 ? undefined : memoryOf(i).view(output).dtype));
  const odd = dtypes.findIndex((dtype) => dtype !== dtypes[0]);
  return odd < 0 ? undefined : `${batches[odd]!.op}: member ${odd} has ${dtypes[odd]}, member 0 ${dtypes[0]}`;
}

function allGather({ batches, sent, memoryOf }: Meeting): string | undefined {
  let all: Content | undefined;
  let like: Int32Array | undefined;
  for (const [i, { output, counts }] of batches.entries()) {
    const wrong = counts.findIndex((count, j) => count !== sizeOf(memoryOf(j), batches[j]!.input));
    if (wrong >= 0) return `allGather: member ${i} expects ${counts[wrong]} elements of member ${wrong}`;
    // All counts are right, so all members get the same.
    if (!all || !like) {
      like = counts;
      const pieces: Piece[] = [];
      let start = 0;
      for (const [j, count] of counts.entries()) {
        pieces.push(...sent[j]!.shifted(start));
        start += count;
      }
      all = contentOf(pieces);
    }
    memoryOf(i).receive(output, all);
  }
  return undefined;
}

/** counts: elements sent to each, then received from each. */
function allToAll({ batches, sent, memoryOf }: Meeting): string | undefined {
  const size = batches.length;
  const taken = new Float64Array(size);
  for (const [i, { output, counts }] of batches.entries()) {
    const pieces: Piece[] = [];
    let start = 0;
    for (const [j, other] of batches.entries()) {
      const theirs = other.counts[i]!;
      const count = counts[size + j]!;
      if (theirs !== count) return `allToAll: member ${i} expects ${count} elements of ${j}, which sends ${theirs}`;
      pieces.push(...sent[j]!.range(taken[j]!, taken[j]! + count).shifted(start));
      taken[j]! += count;
      start += count;
    }
    memoryOf(i).receive(output, contentOf(pieces));
  }
  return undefined;
}

function broadcast({ batches, sent, memoryOf }: Meeting): string | undefined {
  const { root } = batches[0]!;
  const odd = batches.findIndex((batch) => batch.root !== root);
  if (odd >= 0) return `broadcast: member ${odd} expects it from ${batches[odd]!.root}, member 0 from ${root}`;
  const size = sizeOf(memoryOf(root), batches[root]!.output);
  for (const [i, { output }] of batches.entries()) {
    const expected = sizeOf(memoryOf(i), output);
    if (expected !== size) return `broadcast: member ${i} expects ${expected} elements of ${root}, which sends ${size}`;
    if (i !== root) memoryOf(i).receive(output, sent[root]!);
  }
  return undefined;
}

function reduce({ batches, sent, memoryOf }: Meeting, means: StreamMeans): string | undefined {
  const { root, op, input } = batches[0]!;
  const odd = batches.findIndex((batch) => batch.root !== root);
  if (odd >= 0)
    return `${op}: member ${odd} takes the ${reductions[batches[odd]!.root]}, member 0 the ${reductions[root]}`;
  const size = sizeOf(memoryOf(0), input);
  const other = batches.findIndex((batch, i) => sizeOf(memoryOf(i), batch.input) !== size);
  if (other >= 0)
    return `${op}: member ${other} has ${sizeOf(memoryOf(other), batches[other]!.input)} elements, member 0 ${size}`;
  const sum = reductions[root] === "sum" ? summed(sent, means) : nothingHeld;
  let start = 0;
  for (const [i, { output, counts }] of batches.entries()) {
    if (op === "allReduce") memoryOf(i).receive(output, sum);
    else {
      const wrong = counts.findIndex((count, j) => count !== sizeOf(memoryOf(j), batches[j]!.output));
      if (wrong >= 0) return `reduceScatter: member ${i} expects ${counts[wrong]} elements at member ${wrong}`;
      memoryOf(i).receive(output, sum.range(start, start + counts[i]!));
      start += counts[i]!;
    }
  }
  return undefined;
}

function sizeOf(memory: RankMemory, view: number): number {
  return memory.view(view).layout.size;
}
