import {
  type Coordinate,
  type Device,
  type DType,
  DTypeError,
  formatShape,
  OptionError,
  type Shape,
  ShapeError,
  type Tensor,
} from "@mosaic/core";
import { type Caller, sharesOf } from "@mosaic/core/native";

// What groups of real devices refuse is refused here too: a record of it could be proved, and would run nowhere.

/** A mesh of whole ranks, whose axes keep the order in which they are named. */
export function checkMesh(where: string, mesh: Coordinate): void {
  const isLength = (length: number): boolean => Number.isSafeInteger(length) && length > 0;
  const fits = Object.entries(mesh).every(([axis, length]) => /^[A-Za-z_]/.test(axis) && isLength(length));
  if (fits) return;
  throw new OptionError({
    where,
    expected: "a mesh of axes whose names begin with a letter, each a whole number of ranks ≥ 1",
    received: JSON.stringify(mesh),
  });
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

/** Tapes hold numbers of 32 bits. */
const MOST = 2 ** 31 - 1;

/** As `sharesOf`, no larger than a tape can say. */
export function tapedShares(caller: Caller, total: number, given?: readonly number[]): readonly number[] {
  const shares = sharesOf(caller, total, given);
  const most = Math.max(...shares);
  if (most <= MOST) return shares;
  throw new ShapeError({
    where: caller.where,
    expected: `shares of at most ${MOST} elements`,
    received: String(most),
  });
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
export function checkShares({ where }: Caller, { whole, share, counts, rank }: Shares): void {
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
