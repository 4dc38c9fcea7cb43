import {
  type Coordinate,
  type Device,
  type DType,
  DTypeError,
  formatShape,
  OptionError,
  type ReduceOp,
  type Shape,
  ShapeError,
  type Tensor,
  type Transfer,
} from "@mosaic/core";
import { reductions } from "./tape.ts";

// What groups of real devices refuse is refused here too: a record of it could be proved, and would run nowhere.

/** A mesh of whole ranks, whose axes keep the order in which they are named. */
export function checkMesh(where: string, mesh: Coordinate): void {
  const fits = Object.entries(mesh).every(([axis, length]) => /^[A-Za-z_]/.test(axis) && isCount(length) && length > 0);
  if (fits) return;
  throw new OptionError({
    where,
    expected: "a mesh of axes whose names begin with a letter, each a whole number of ranks ≥ 1",
    received: JSON.stringify(mesh),
  });
}

function isCount(value: number): boolean {
  return Number.isSafeInteger(value) && value >= 0;
}

/** A tensor of this very rank, as collectives move it. */
export function checkTensor(where: string, tensor: Tensor, device: Device): void {
  tensor.assertUsable(where);
  if (tensor.device !== device) {
    throw new OptionError({
      where,
      expected: `a tensor of rank ${device.index}`,
      received: `one of another device, ${tensor.device.type}:${tensor.device.index}`,
      remedy: "make it on the context of this rank",
    });
  }
  if (tensor.isContiguous) return;
  throw new ShapeError({
    where,
    expected: "dense tensors",
    received: String(tensor),
    remedy: "call contiguous() first",
  });
}

/** The number of a reduction. */
export function checkReduceOp(where: string, op: ReduceOp): number {
  const number = reductions.indexOf(op);
  if (number >= 0) return number;
  throw new OptionError({ where, expected: "sum, mean or max", received: String(op) });
}

interface Shared {
  readonly size: number;
  readonly total: number;
  readonly given: readonly number[] | undefined;
}

/** Tapes hold numbers of 32 bits. */
const MOST = 2 ** 31 - 1;

/** Shares by rank: as given, or equal ones of `total` elements. */
export function sharesOf(where: string, shared: Shared): readonly number[] {
  const shares = sharesFrom(where, shared);
  const most = Math.max(...shares);
  if (most <= MOST) return shares;
  throw new ShapeError({ where, expected: `shares of at most ${MOST} elements`, received: String(most) });
}

function sharesFrom(where: string, { size, total, given }: Shared): readonly number[] {
  if (!given) {
    if (total % size === 0) return new Array<number>(size).fill(total / size);
    throw new ShapeError({
      where,
      expected: `a number of elements that ${size} ranks share equally`,
      received: String(total),
      remedy: "give the shares as counts",
    });
  }
  if (given.length === size && given.every(isCount)) return given;
  throw new ShapeError({ where, expected: `${size} counts, whole numbers ≥ 0`, received: formatShape(given) });
}

/** What is known of a tensor, or of part of one. */
interface Extent {
  readonly dtype: DType;
  readonly size: number;
  readonly shape: Shape;
}

interface Shares {
  readonly whole: Extent;
  /** What is this rank's of it. */
  readonly share: Extent;
  readonly counts: readonly number[];
  readonly rank: number;
}

/** Shares are of a tensor's dtype, make up all of it, and this rank's is as large as the tensor that it is in. */
export function checkShares(where: string, { whole, share, counts, rank }: Shares): void {
  if (whole.dtype !== share.dtype) {
    throw new DTypeError({
      where,
      expected: "out of the dtype of the input",
      received: `${whole.dtype}, ${share.dtype}`,
    });
  }
  const total = counts.reduce((a, b) => a + b, 0);
  for (const [extent, expected] of [[whole, total] as const, [share, counts[rank]!] as const]) {
    if (extent.size === expected) continue;
    throw new ShapeError({
      where,
      expected: `${expected} elements`,
      received: `${formatShape(extent.shape)}, ${extent.size} elements`,
    });
  }
}

/** Sends to oneself are copies, paired in order. */
export function checkSelfTransfers(where: string, rank: number, transfers: readonly Transfer[]): void {
  const described = ({ tensor }: Transfer): string => `${tensor.dtype} ${formatShape(tensor.shape)}`;
  const sent = transfers.filter((transfer) => "to" in transfer && transfer.to === rank).map(described);
  const received = transfers.filter((transfer) => "from" in transfer && transfer.from === rank).map(described);
  if (sent.length === received.length && sent.every((each, i) => each === received[i])) return;
  throw new ShapeError({
    where,
    expected: `receives from itself that match its sends to itself: ${sent.join(", ") || "none"}`,
    received: received.join(", ") || "none",
  });
}
