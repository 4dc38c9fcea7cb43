import type { PostedBatch } from "./batch.ts";
import type { RankMemory } from "./rank-memory.ts";

/** Up to this number, each message is compared with every other; beyond it, with its neighbors in order. */
const MAX_PAIRWISE_MESSAGES = 8;

/**
 * Returns whether a collective writes where it also reads, or twice to one place. Its messages are transferred
 * concurrently, in no order and in pieces, so received data may overwrite data that is still to be sent. `groupRank` is
 * the rank in the group.
 */
export function overlapsItself(batch: PostedBatch, memory: RankMemory, groupRank: number): boolean {
  switch (batch.op) {
    case "sendRecv":
    case "groupCast":
    case "groupReduce":
      return batch.viewCount > MAX_PAIRWISE_MESSAGES ? hasOrderedOverlap(batch) : hasPairwiseOverlap(batch, memory);
    case "allToAll":
      return viewsOverlap(memory, batch.outputView, batch.inputView);
    // In place is legal: a rank's own shard, at its position in the whole.
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

/** Whether two views overlap. Views of collectives are dense. */
function viewsOverlap(memory: RankMemory, a: number, b: number): boolean {
  if (memory.storageOf(a) !== memory.storageOf(b)) return false;
  const [layoutA, layoutB] = [memory.view(a).layout, memory.view(b).layout];
  return layoutA.low < layoutB.high && layoutB.low < layoutA.high;
}

// oxlint-disable-next-line max-params -- a rank's shard and the whole
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

/**
 * Whether memory that is written is used twice. Mostly, adjacent ranges are written in order and nothing else in the
 * storage is used.
 */
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
