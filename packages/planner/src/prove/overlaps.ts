import type { PostedBatch } from "./batch.ts";
import type { RankMemory } from "./rank-memory.ts";

/** Of so many messages each is compared with each; of more, with its neighbours in order. */
const MAX_PAIRWISE_MESSAGES = 8;

/**
 * Whether a collective writes where it also reads, or twice to one place. Its messages move side by side, in no order and
 * in pieces, so that what arrives may overwrite what is still to be sent. `place`: the rank's in the group.
 */
export function overlapsItself(batch: PostedBatch, memory: RankMemory, groupRank: number): boolean {
  switch (batch.op) {
    case "sendRecv":
    case "groupCast":
    case "groupReduce":
      return batch.viewCount > MAX_PAIRWISE_MESSAGES ? hasOrderedOverlap(batch) : hasPairwiseOverlap(batch, memory);
    case "allToAll":
      return viewsOverlap(memory, batch.outputView, batch.inputView);
    // In place is legal: a rank's own share, where it belongs in the whole.
    case "allGather":
      return (
        viewsOverlap(memory, batch.outputView, batch.inputView) &&
        !isInPlaceShard(batch, memory, groupRank, batch.outputView, batch.inputView)
      );
    case "reduceScatter":
      return (
        viewsOverlap(memory, batch.outputView, batch.inputView) &&
        !isInPlaceShard(batch, memory, groupRank, batch.inputView, batch.outputView)
      );
    default:
      return false;
  }
}

/** Views of collectives are dense: from their first element to their last. */
function viewsOverlap(memory: RankMemory, a: number, b: number): boolean {
  if (memory.storageOf(a) !== memory.storageOf(b)) return false;
  const [layoutA, layoutB] = [memory.view(a).layout, memory.view(b).layout];
  return layoutA.low < layoutB.high && layoutB.low < layoutA.high;
}

// oxlint-disable-next-line max-params -- whose share, and of what
function isInPlaceShard(
  { counts }: PostedBatch,
  memory: RankMemory,
  groupRank: number,
  totalView: number,
  shardView: number,
): boolean {
  const precedingSize = counts.subarray(0, groupRank).reduce((sum, count) => sum + count, 0);
  return memory.view(shardView).layout.low === memory.view(totalView).layout.low + precedingSize;
}

function hasPairwiseOverlap(batch: PostedBatch, memory: RankMemory): boolean {
  for (let i = 0; i < batch.viewCount; i++) {
    if (!batch.isWrite(i)) continue;
    for (let j = 0; j < batch.viewCount; j++) {
      if (i !== j && viewsOverlap(memory, batch.viewId(i), batch.viewId(j))) return true;
    }
  }
  return false;
}

/** Whether what is written to a storage is used twice: mostly one range is written behind the other, and nothing else used there. */
function hasOrderedOverlap(batch: PostedBatch): boolean {
  const usesByStorage = new Map<number, StorageUse>();
  let areRangesOrdered = true;
  let last: StorageUse | undefined;
  for (let i = 0; i < batch.viewCount && areRangesOrdered; i++) {
    const [storage, low, high] = [batch.storageId(i), batch.low(i), batch.high(i)];
    if (low >= high) continue;
    if (last?.storage !== storage) {
      last = usesByStorage.get(storage);
      if (!last) usesByStorage.set(storage, (last = { storage, isWrite: batch.isWrite(i), end: 0 }));
    }
    areRangesOrdered = last.isWrite === batch.isWrite(i) && (!last.isWrite || low >= last.end);
    last.end = high;
  }
  return !areRangesOrdered && hasOverlapInAnyOrder(batch);
}

interface StorageUse {
  readonly storage: number;
  readonly isWrite: boolean;
  end: number;
}

function hasOverlapInAnyOrder(batch: PostedBatch): boolean {
  const uses = Array.from({ length: batch.viewCount }, (_, i) => {
    return { storage: batch.storageId(i), low: batch.low(i), high: batch.high(i), writes: batch.isWrite(i) };
  });
  uses.sort((a, b) => a.storage - b.storage || a.low - b.low);
  let [storage, usedEnd, writtenEnd] = [-1, 0, 0];
  for (const use of uses) {
    if (use.storage !== storage) [storage, usedEnd, writtenEnd] = [use.storage, 0, 0];
    if (use.low < use.high && (use.low < writtenEnd || (use.writes && use.low < usedEnd))) return true;
    usedEnd = Math.max(usedEnd, use.high);
    if (use.writes) writtenEnd = Math.max(writtenEnd, use.high);
  }
  return false;
}
