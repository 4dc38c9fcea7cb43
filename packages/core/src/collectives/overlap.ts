import { ShapeError } from "../errors.ts";
import { formatShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import type { Transfer } from "./process-group.ts";

interface OperandPair {
  readonly out: Tensor;
  readonly input: Tensor;
  /** Storage offset at which the input may overlap `out`: the operation is then in place, as in NCCL. */
  readonly inPlaceOffset?: number;
}

/**
 * Throws a ShapeError if an operand that is written shares memory with one that is read, unless the operation is in
 * place.
 */
export function checkOverlap(where: string, { out, input, inPlaceOffset }: OperandPair): void {
  if (out.storage !== input.storage || out.size === 0 || input.size === 0) return;
  if (input.offset === inPlaceOffset) return;
  if (out.offset + out.size <= input.offset || input.offset + input.size <= out.offset) return;
  throw new ShapeError({
    where,
    expected: `out and input in separate memory${inPlaceOffset === undefined ? "" : ", or this rank's shard in place"}`,
    received: `overlapping tensors ${formatShape(out.shape)} and ${formatShape(input.shape)}`,
    remedy: "use a separate receive buffer",
  });
}

/** Elements [start, end) of a storage that a batch reads or writes. */
interface ElementRange {
  readonly start: number;
  readonly end: number;
  readonly isWritten: boolean;
}

/** Up to this number of transfers, storages are first compared pairwise. Larger batches always use a map. */
const MAX_PAIRWISE_TRANSFERS = 8;

function sharesStorage(transfers: readonly Transfer[]): boolean {
  for (let i = 1; i < transfers.length; i++) {
    const { storage } = transfers[i]!.tensor;
    for (let j = 0; j < i; j++) if (transfers[j]!.tensor.storage === storage) return true;
  }
  return false;
}

/**
 * Throws a ShapeError if a receive buffer overlaps any other transfer of the batch, because the order of its messages
 * is not defined.
 */
export function checkBatchOverlap(where: string, transfers: readonly Transfer[]): void {
  if (transfers.length <= MAX_PAIRWISE_TRANSFERS && !sharesStorage(transfers)) return;
  const rangesByStorage = new Map<Tensor["storage"], ElementRange[]>();
  for (const transfer of transfers) {
    const { storage, offset, size } = transfer.tensor;
    if (size === 0) continue;
    const range = { start: offset, end: offset + size, isWritten: "from" in transfer };
    const ranges = rangesByStorage.get(storage);
    if (ranges) ranges.push(range);
    else rangesByStorage.set(storage, [range]);
  }
  for (const ranges of rangesByStorage.values()) if (ranges.length > 1 && hasOverlap(ranges)) throw overlapError(where);
}

function overlapError(where: string): ShapeError {
  return new ShapeError({
    where,
    expected: "receive buffers that do not overlap any other transfer of the batch",
    received: "overlapping transfers",
    remedy: "use a separate receive buffer",
  });
}

/** Returns whether a range that is written overlaps another. */
function hasOverlap(ranges: ElementRange[]): boolean {
  ranges.sort((a, b) => a.start - b.start);
  let [readEnd, writtenEnd] = [Number.NEGATIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const { start, end, isWritten } of ranges) {
    if (start < writtenEnd || (isWritten && start < readEnd)) return true;
    if (isWritten) writtenEnd = Math.max(writtenEnd, end);
    else readEnd = Math.max(readEnd, end);
  }
  return false;
}
