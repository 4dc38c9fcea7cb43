import type { ProcessGroup, Tensor, Transfer } from "@mosaic/core";
import { type Chunk, ChunkBuffers, type ChunkSpec, recvTransfers, sendTransfers } from "@mosaic/core/context-parallel";
import type { Heads, Split } from "./heads.ts";

/** This rank's rows of some heads, from the rank that had them. */
export interface Piece {
  readonly heads: Heads;
  readonly tensors: readonly Tensor[];
}

/**
 * One exchange of rows for heads, or of heads for rows, among the ranks of a group: declared chunk by chunk, run as one
 * batch of messages. Chunks lie rows first, so that the rows of one rank are dense: a message fills them, or sends them, as
 * they lie. Nothing that is empty is sent; what a rank keeps never leaves it.
 */
export class Exchange implements Disposable {
  readonly #group: ProcessGroup;
  readonly #label: string;
  readonly #buffers: ChunkBuffers;
  readonly #transfers: Transfer[] = [];
  readonly #kept: { readonly from: readonly Tensor[]; readonly to: Chunk }[] = [];

  constructor(group: ProcessGroup, label: string) {
    this.#group = group;
    this.#label = label;
    this.#buffers = new ChunkBuffers({ device: group.device, order: "sbhd" });
  }

  /**
   * Gives every rank its heads of this rank's rows [B,H,S,…]; the result, in `buffers`, has all rows of this rank's heads,
   * [B,h,ΣS,…].
   */
  toHeads(tensors: readonly Tensor[], { rows, heads }: Split, buffers: ChunkBuffers): Chunk {
    const { rank } = this.#group;
    const all = buffers.empty(withHeads(tensors, heads[rank]!), sum(rows));
    let first = 0;
    for (const [other, count] of rows.entries()) {
      const theirs = this.#buffers.narrow(all, first, count);
      const part = tensors.map((x) => headsOf(x, heads[other]!, this.#buffers));
      first += count;
      if (other === rank) this.#kept.push({ from: part, to: theirs });
      else {
        this.#post(recvTransfers(theirs, other));
        if (part[0]!.size > 0) this.#post(sendTransfers(this.#buffers.copy(part), other));
      }
    }
    return all;
  }

  /** The way back: every rank gets its rows of this rank's heads [B,h,ΣS,…]. The result, in `buffers`, is in rank order. */
  toRows(all: Chunk, { rows, heads }: Split, buffers: ChunkBuffers): Piece[] {
    const { rank } = this.#group;
    let first = 0;
    return rows.map((count, other) => {
      const theirs = buffers.narrow(all, first, count);
      first += count;
      if (other === rank) return { heads: heads[rank]!, tensors: theirs.tensors };
      const own = buffers.empty(withHeads(all.tensors, heads[other]!), rows[rank]!);
      this.#post(sendTransfers(theirs, other));
      this.#post(recvTransfers(own, other));
      return { heads: heads[other]!, tensors: own.tensors };
    });
  }

  /** Moves what was declared, what is kept while the messages are under way; later work on the device finds it moved. */
  run(): void {
    const transfers = this.#transfers;
    const work = transfers.length > 0 ? this.#group.sendRecv(transfers, { label: this.#label }) : undefined;
    for (const { from, to } of this.#kept) this.#buffers.copy(from, to);
    work?.wait();
  }

  #post(transfers: readonly Transfer[]): void {
    for (const transfer of transfers) if (transfer.tensor.size > 0) this.#transfers.push(transfer);
  }

  [Symbol.dispose](): void {
    this.#buffers[Symbol.dispose]();
  }
}

/** Some heads of x [B,H,…], as a view that `buffers` disposes. */
export function headsOf(x: Tensor, { first, count }: Heads, buffers: ChunkBuffers): Tensor {
  const offset = x.offset + (count > 0 ? first * x.strides[1]! : 0);
  return buffers.takeOwnership(x.view({ shape: x.shape.with(1, count), offset }));
}

function withHeads(tensors: readonly Tensor[], { count }: Heads): ChunkSpec {
  return tensors.map(({ shape, dtype }) => ({ shape: shape.with(1, count), dtype }));
}

function sum(counts: readonly number[]): number {
  return counts.reduce((total, count) => total + count, 0);
}
