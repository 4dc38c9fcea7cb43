import type { ProcessGroup, Tensor, Transfer, Work } from "@mosaic/core";
import type { RowRange } from "./required-rows.ts";

/** Which rows of each rank's input every rank receives. The same on all ranks of the group. */
export interface GroupCastPlan {
  /** Ranks. */
  readonly size: number;
  /** Local rows of `sender`'s input that `receiver` obtains: ascending, disjoint, not empty; none for sender = receiver. */
  ranges(sender: number, receiver: number): readonly RowRange[];
}

/** out: the rows of sender 0, its ranges in order, then those of sender 1, … */
// oxlint-disable-next-line max-params -- as the group's own operations
export function groupCast(
  group: ProcessGroup,
  out: readonly Tensor[],
  input: readonly Tensor[],
  plan: GroupCastPlan,
  label: string,
): Work {
  const { rank, size } = group;
  const pool: Tensor[] = [];
  const transfers: Transfer[] = [];
  const arrivals: { readonly to: Tensor; readonly from: Tensor }[] = [];
  for (let peer = 0, row = 0; peer < size; peer++) {
    for (const x of input)
      if (plan.ranges(rank, peer).length > 0)
        transfers.push({ tensor: pack(x, plan.ranges(rank, peer), pool), to: peer });
    const rows = count(plan.ranges(peer, rank));
    if (rows > 0) {
      for (const x of out) {
        const from = x.device.empty(x.shape.with(2, rows), x.dtype);
        pool.push(from);
        transfers.push({ tensor: from, from: peer });
        arrivals.push({ to: x.slice(2, row, row + rows), from });
      }
    }
    row += rows;
  }
  const work = transfers.length > 0 ? group.sendRecv(transfers, { label }) : undefined;
  return {
    wait() {
      work?.wait();
      for (const { to, from } of arrivals) {
        to.device.kernels.copy(to, from);
        to.dispose();
      }
      for (const tensor of pool) tensor.dispose();
    },
  };
}

/** The transpose: out += what receivers send back, in rank order. */
// oxlint-disable-next-line max-params -- as the group's own operations
export function groupReduce(
  group: ProcessGroup,
  out: readonly Tensor[],
  input: readonly Tensor[],
  plan: GroupCastPlan,
  label: string,
): Work {
  const { rank, size } = group;
  const pool: Tensor[] = [];
  const transfers: Transfer[] = [];
  const arrivals: (() => void)[] = [];
  for (let peer = 0, row = 0; peer < size; peer++) {
    const rows = count(plan.ranges(peer, rank));
    if (rows > 0) {
      for (const x of input) transfers.push({ tensor: pack(x, [{ start: row, length: rows }], pool), to: peer });
    }
    row += rows;
    const ranges = plan.ranges(rank, peer);
    if (ranges.length === 0) continue;
    for (const x of out) {
      const from = x.device.empty(x.shape.with(2, count(ranges)), x.dtype);
      pool.push(from);
      transfers.push({ tensor: from, from: peer });
      arrivals.push(() => {
        let at = 0;
        for (const { start, length } of ranges) {
          using to = x.slice(2, start, start + length);
          using part = from.slice(2, at, (at += length));
          x.device.kernels.binary("add", to, to, part);
        }
      });
    }
  }
  const work = transfers.length > 0 ? group.sendRecv(transfers, { label }) : undefined;
  return {
    wait() {
      work?.wait();
      for (const add of arrivals) add();
      for (const tensor of pool) tensor.dispose();
    },
  };
}

function pack(x: Tensor, ranges: readonly RowRange[], pool: Tensor[]): Tensor {
  const out = x.device.empty(x.shape.with(2, count(ranges)), x.dtype);
  pool.push(out);
  let at = 0;
  for (const { start, length } of ranges) {
    using from = x.slice(2, start, start + length);
    using to = out.slice(2, at, (at += length));
    x.device.kernels.copy(to, from);
  }
  return out;
}

function count(ranges: readonly RowRange[]): number {
  return ranges.reduce((rows, { length }) => rows + length, 0);
}
