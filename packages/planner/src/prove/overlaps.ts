import type { PostedBatch } from "./batch.ts";
import type { RankMemory } from "./rank-memory.ts";

/** Of so many messages each is compared with each; of more, with its neighbours in order. */
const MAX_PAIRWISE = 8;

/**
 * Whether a collective writes where it also reads, or twice to one place. Its messages move side by side, in no order and
 * in pieces, so that what arrives may overwrite what is still to be sent. `place`: the rank's in the group.
 */
export function overlapsItself(batch: PostedBatch, memory: RankMemory, place: number): boolean {
  switch (batch.op) {
    case "sendRecv":
    case "groupCast":
    case "groupReduce":
      return batch.uses > MAX_PAIRWISE ? overlapSorted(batch, memory) : overlapPairwise(batch, memory);
    case "allToAll":
      return overlap(memory, batch.output, batch.input);
    // In place is legal: a rank's own share, where it belongs in the whole.
    case "allGather":
      return (
        overlap(memory, batch.output, batch.input) && !isInPlaceShare(batch, memory, place, batch.output, batch.input)
      );
    case "reduceScatter":
      return (
        overlap(memory, batch.output, batch.input) && !isInPlaceShare(batch, memory, place, batch.input, batch.output)
      );
    default:
      return false;
  }
}

/** Views of collectives are dense: from their first element to their last. */
function overlap(memory: RankMemory, a: number, b: number): boolean {
  if (memory.storageOf(a) !== memory.storageOf(b)) return false;
  const [one, two] = [memory.view(a).layout, memory.view(b).layout];
  return one.low < two.high && two.low < one.high;
}

// oxlint-disable-next-line max-params -- whose share, and of what
function isInPlaceShare(
  { counts }: PostedBatch,
  memory: RankMemory,
  place: number,
  whole: number,
  share: number,
): boolean {
  const before = counts.subarray(0, place).reduce((sum, count) => sum + count, 0);
  return memory.view(share).layout.low === memory.view(whole).layout.low + before;
}

function overlapPairwise(batch: PostedBatch, memory: RankMemory): boolean {
  for (let i = 0; i < batch.uses; i++) {
    if (!batch.writes(i)) continue;
    for (let j = 0; j < batch.uses; j++) {
      if (i !== j && overlap(memory, batch.view(i), batch.view(j))) return true;
    }
  }
  return false;
}

function overlapSorted(batch: PostedBatch, memory: RankMemory): boolean {
  const uses = Array.from({ length: batch.uses }, (_, i) => {
    const view = batch.view(i);
    const { low, high } = memory.view(view).layout;
    return { storage: memory.storageOf(view), low, high, writes: batch.writes(i) };
  });
  uses.sort((a, b) => a.storage - b.storage || a.low - b.low);
  let [storage, used, written] = [-1, 0, 0];
  for (const use of uses) {
    if (use.storage !== storage) [storage, used, written] = [use.storage, 0, 0];
    if (use.low < use.high && (use.low < written || (use.writes && use.low < used))) return true;
    used = Math.max(used, use.high);
    if (use.writes) written = Math.max(written, use.high);
  }
  return false;
}
