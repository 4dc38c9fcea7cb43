import type { ProcessGroup, Tensor, Transfer } from "@mosaic/core";
import type { Heads } from "./heads.ts";
import { Scope } from "./memory.ts";

/** How a sequence lies on the ranks of a group before an exchange, and after: some rows of all heads, or all rows of some. */
export interface Split {
  /** Rows of every rank. */
  readonly rows: readonly number[];
  /** Heads of every rank; a head may belong to several. */
  readonly heads: readonly Heads[];
}

/** This rank's rows of some heads, from the rank that had them. */
export interface Piece {
  readonly heads: Heads;
  readonly tensor: Tensor;
}

/**
 * One exchange of rows for heads, or of heads for rows, among the ranks of a group: declared tensor by tensor, run as one
 * batch of messages. Nothing that is empty is sent; what a rank keeps never leaves it.
 */
export class Exchange implements Disposable {
  readonly #group: ProcessGroup;
  readonly #label: string;
  readonly #scope = new Scope();
  readonly #transfers: Transfer[] = [];
  readonly #kept: { readonly from: Tensor; readonly to: Tensor }[] = [];

  constructor(group: ProcessGroup, label: string) {
    this.#group = group;
    this.#label = label;
  }

  /** Gives every rank its heads of this rank's rows x [B,H,S,…]; the result, in `scope`, has all rows of this rank's heads. */
  toHeads(x: Tensor, { rows, heads }: Split, scope: Scope): Tensor {
    const { rank } = this.#group;
    const shape = x.shape.with(1, heads[rank]!.count).with(2, sum(rows));
    const all = scope.empty(x.device, shape, x.dtype);
    let first = 0;
    for (const [other, count] of rows.entries()) {
      const theirs = this.#scope.rows(all, first, count);
      const part = this.#scope.heads(x, heads[other]!);
      first += count;
      if (other === rank) {
        this.#kept.push({ from: part, to: theirs });
        continue;
      }
      this.#receive(theirs, other);
      if (part.size > 0) this.#send(this.#packed(part), other);
    }
    return all;
  }

  /** The way back: every rank gets its rows of this rank's heads x [B,h,ΣS,…]. The result, in `scope`, is in rank order. */
  toRows(x: Tensor, { rows, heads }: Split, scope: Scope): Piece[] {
    const { rank } = this.#group;
    let first = 0;
    return rows.map((count, other) => {
      const theirs = scope.rows(x, first, count);
      first += count;
      if (other === rank) return { heads: heads[rank]!, tensor: theirs };
      this.#send(theirs, other);
      const shape = x.shape.with(1, heads[other]!.count).with(2, rows[rank]!);
      const tensor = scope.empty(x.device, shape, x.dtype);
      this.#receive(tensor, other);
      return { heads: heads[other]!, tensor };
    });
  }

  /** Moves what was declared, what is kept while the messages are under way; later work on the device finds it moved. */
  run(): void {
    const transfers = this.#transfers;
    const work = transfers.length > 0 ? this.#group.sendRecv(transfers, { label: this.#label }) : undefined;
    for (const { from, to } of this.#kept) to.device.kernels.copy(to, from);
    work?.wait();
  }

  #packed(part: Tensor): Tensor {
    const copy = this.#scope.empty(part.device, part.shape, part.dtype);
    part.device.kernels.copy(copy, part);
    return copy;
  }

  #send(x: Tensor, to: number): void {
    if (x.size > 0) this.#transfers.push({ tensor: this.#scope.message(x), to });
  }

  #receive(x: Tensor, from: number): void {
    if (x.size > 0) this.#transfers.push({ tensor: this.#scope.message(x), from });
  }

  [Symbol.dispose](): void {
    this.#scope[Symbol.dispose]();
  }
}

function sum(counts: readonly number[]): number {
  return counts.reduce((total, count) => total + count, 0);
}
