import type { ReduceOp, Transfer } from "../../collectives.ts";
import type { Device } from "../../device.ts";
import { DTypeError, OptionError, ShapeError } from "../../errors.ts";
import { formatShape } from "../../shape.ts";
import type { Tensor } from "../../tensor.ts";
import { isReduceOp } from "./call.ts";

// Everything here throws before anything is posted, so that a mistake on one rank leaves the others' messages whole.

/** Who calls: what messages begin with, and what the group is. */
export interface Caller {
  readonly where: string;
  readonly device: Device;
  readonly size: number;
}

/** A tensor that can be sent or received as it lies in memory. */
export function checkOperand({ where, device }: Caller, x: Tensor): void {
  x.assertUsable(where);
  if (x.device !== device) {
    throw new OptionError({
      where,
      expected: `a tensor on the group's device, ${device.type}:${device.index}`,
      received: `one on ${x.device.type}:${x.device.index}${x.device.type === device.type ? ", another device" : ""}`,
      remedy: "make it on the context of this rank",
    });
  }
  if (!x.isContiguous) {
    throw new ShapeError({
      where,
      expected: "a contiguous tensor",
      received: `${formatShape(x.shape)} with strides ${formatShape(x.strides)}`,
      remedy: "call contiguous() first",
    });
  }
}

export function checkSameDType({ where }: Caller, out: Tensor, input: Tensor): void {
  if (out.dtype === input.dtype) return;
  throw new DTypeError({ where, expected: `out of ${input.dtype}, like the input`, received: out.dtype });
}

export function checkSize({ where }: Caller, name: string, x: Tensor, size: number): void {
  if (x.size === size) return;
  throw new ShapeError({
    where,
    expected: `${name} of ${size} elements`,
    received: `${formatShape(x.shape)}, ${x.size} elements`,
  });
}

/** Shares by rank: as given, or equal ones of `total` elements. */
export function sharesOf({ where, size }: Caller, total: number, given?: readonly number[]): readonly number[] {
  if (!given) {
    if (total % size === 0) return new Array<number>(size).fill(total / size);
    throw new ShapeError({
      where,
      expected: `a number of elements that ${size} ranks share equally`,
      received: String(total),
      remedy: "give the shares as counts",
    });
  }
  if (given.length === size && given.every((count) => Number.isSafeInteger(count) && count >= 0)) return given;
  throw new ShapeError({
    where,
    expected: `${size} counts, whole numbers ≥ 0`,
    received: formatShape(given),
  });
}

export function checkRank({ where, size }: Caller, rank: number): void {
  if (Number.isInteger(rank) && rank >= 0 && rank < size) return;
  throw new OptionError({ where, expected: `a rank from 0 to ${size - 1}`, received: String(rank) });
}

export function checkReduceOp({ where }: Caller, op: ReduceOp): void {
  if (!isReduceOp(op)) throw new OptionError({ where, expected: "sum, mean or max", received: String(op) });
}

const described = ({ tensor }: Transfer): string => `${tensor.dtype} ${formatShape(tensor.shape)}`;

/** Sends to oneself are copies, paired in order. */
export function checkSelfTransfers({ where }: Caller, rank: number, transfers: readonly Transfer[]): void {
  const sent = transfers.filter((transfer) => "to" in transfer && transfer.to === rank).map(described);
  const received = transfers.filter((transfer) => "from" in transfer && transfer.from === rank).map(described);
  if (sent.length === received.length && sent.every((each, i) => each === received[i])) return;
  throw new ShapeError({
    where,
    expected: `receives from itself that match its sends to itself: ${sent.join(", ") || "none"}`,
    received: received.join(", ") || "none",
  });
}
