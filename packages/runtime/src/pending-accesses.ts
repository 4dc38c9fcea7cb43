import { type CollectiveCall, dtypeBytes, formatShape, OptionError, type Storage, type Tensor } from "@mosaic/core";

/** Order between the collectives of one rank and later work on its compute stream. */
export interface ComputeOrder {
  /** Compute that is enqueued from now on runs after all collectives up to this number. */
  orderedNumber: number;
}

/** A collective that may still run while later compute is executed. */
export interface PostedCollective {
  readonly number: number;
  readonly order: ComputeOrder;
  readonly op: CollectiveCall["op"];
  /** Number of the operation in its group. */
  readonly sequence: number;
  /** Name of the group. */
  readonly group: string;
  readonly label: string;
}

/** Describes a collective for messages: `allReduce #5 (world)`. */
function describe({ op, sequence, group, label }: PostedCollective): string {
  return `${op} #${sequence} (${group})${label && ` of ${label}`}`;
}

/** Bytes [start, end) of a storage that a collective accesses between its post and `wait`. */
export interface PendingAccess {
  readonly collective: PostedCollective;
  readonly start: number;
  end: number;
  readonly isWrite: boolean;
}

/** A storage whose pending accesses are recorded: a `NativeStorage`, possibly of another copy of this package. */
export interface CheckedStorage extends Storage {
  /** Undefined if there are none, so that calls test a single field. Accesses that are over are removed at the next use. */
  pendingAccesses: PendingAccess[] | undefined;
}

function isCheckedStorage(storage: Storage): storage is CheckedStorage {
  return "pendingAccesses" in storage;
}

const isPending = ({ collective }: PendingAccess): boolean => collective.number > collective.order.orderedNumber;

/** Elements [start, end) of a storage. */
interface ElementRange {
  readonly start: number;
  readonly end: number;
}

/** Records that a collective accesses a contiguous tensor, or the elements `range` of its storage. */
export function recordPendingAccess(
  { storage, dtype, offset, size }: Tensor,
  { collective, isWrite }: Pick<PendingAccess, "collective" | "isWrite">,
  { start, end }: ElementRange = { start: offset, end: offset + size },
): void {
  if (start >= end || !isCheckedStorage(storage)) return;
  const [startByte, endByte] = [start * dtypeBytes[dtype], end * dtypeBytes[dtype]];
  let accesses = storage.pendingAccesses;
  const lastAccess = accesses?.at(-1);
  if (lastAccess?.collective === collective) {
    // A batch often receives consecutive rows.
    if (lastAccess.isWrite === isWrite && lastAccess.end === startByte) {
      lastAccess.end = endByte;
      return;
    }
  } else accesses = accesses?.filter(isPending);
  (storage.pendingAccesses = accesses ?? []).push({ collective, start: startByte, end: endByte, isWrite });
}

/**
 * Throws an OptionError if a collective in flight writes elements of `x`, or reads some and `isMutated`. Called for
 * storages with pending accesses only.
 */
export function checkPendingAccesses(where: string, x: Tensor, isMutated: boolean): void {
  const storage = x.storage as CheckedStorage;
  const accesses = storage.pendingAccesses?.filter(isPending) ?? [];
  storage.pendingAccesses = accesses.length > 0 ? accesses : undefined;
  const elementBytes = dtypeBytes[x.dtype];
  for (const { collective, start, end, isWrite } of accesses) {
    if (!isWrite && !isMutated) continue;
    if (!hasElementIn(x, { start: Math.floor(start / elementBytes), end: Math.ceil(end / elementBytes) })) continue;
    throw new OptionError({
      where,
      expected: isWrite ? "a tensor that no collective is writing" : "an output that no collective is reading",
      received: `${formatShape(x.shape)}, which ${describe(collective)} is ${isWrite ? "writing" : "reading"}`,
      remedy: "call wait() of its Work first",
    });
  }
}

/** Returns whether an element of the view has a position in the range. */
function hasElementIn({ shape, strides, offset }: Tensor, range: ElementRange): boolean {
  if (shape.includes(0)) return false;
  const axes = shape
    .map((length, axis) => ({ length, stride: strides[axis]! }))
    .filter(({ length, stride }) => length > 1 && stride !== 0)
    .sort((a, b) => b.stride - a.stride);
  return hasPositionIn(axes, offset, range);
}

interface Axis {
  readonly length: number;
  readonly stride: number;
}

/** As `hasElementIn`, for axes in descending order of their strides and the position of the first element. */
function hasPositionIn(axes: readonly Axis[], first: number, range: ElementRange): boolean {
  const last = axes.reduce((position, { length, stride }) => position + (length - 1) * stride, first);
  if (last < range.start || first >= range.end) return false;
  if (first >= range.start || last < range.end) return true;
  const [{ length, stride }, ...innerAxes] = axes as [Axis, ...Axis[]];
  const innerExtent = last - first - (length - 1) * stride;
  const firstIndex = Math.max(0, Math.ceil((range.start - first - innerExtent) / stride));
  const lastIndex = Math.min(length - 1, Math.floor((range.end - 1 - first) / stride));
  for (let i = firstIndex; i <= lastIndex; i++) if (hasPositionIn(innerAxes, first + i * stride, range)) return true;
  return false;
}
