import type {
  AttentionBackend,
  AttentionCall,
  AttentionState,
  Context,
  GroupCastOptions,
  KvShard,
  QkvGrads,
  SavedRows,
  Tensor,
  Work,
} from "@mosaic/core";
import { type Chunk, ChunkBuffers, rowsOf } from "@mosaic/core/context-parallel";
import type { Exchange } from "./exchange.ts";
import type { PassContext } from "./stages.ts";

/**
 * The exchange of queries and results in one pass of a call. Queries are sent before anything is computed. The received
 * queries attend to the local keys after the first step, while the first stage is in flight, and their results are
 * returned while the stages are attended to. They cover exactly the pairs whose keys are not sent, because a mask
 * refers to global positions.
 */
export class QueryExchange implements Disposable {
  readonly #pass: PassContext;
  readonly #call: AttentionCall;
  readonly #exchange: Exchange;
  readonly #buffers: ChunkBuffers;
  /** Queries of other ranks and, in backward, their dOut, lse and delta: [B,H,S,D] or [B,H,S,1]. */
  #receivedQueries: Chunk | undefined;
  /** The returned results of this rank's queries: out and lse, or dq. */
  #returnedChunk: Chunk | undefined;
  #work: Work | undefined;

  constructor(pass: PassContext, call: AttentionCall, exchange: Exchange) {
    this.#pass = pass;
    this.#call = call;
    this.#exchange = exchange;
    this.#buffers = new ChunkBuffers({ device: pass.group.device });
  }

  /** Sends queries and their per-query rows to the ranks whose keys they attend to. */
  send(rows: readonly Tensor[]): void {
    const sentChunk = this.#buffers.contiguous(rows.map((x) => this.#appendAxis(x)));
    const { group } = this.#pass;
    this.#receivedQueries = this.#buffers.empty(sentChunk.tensors, this.#exchange.queries(group.rank).count);
    this.#postGroupCast(this.#receivedQueries, sentChunk, { plan: this.#exchange.queryGroupCastPlan, name: "queries" });
  }

  /** Computes the attention of the received queries to the local keys, and sends the states back. */
  attend(ctx: Context, inner: AttentionBackend, kv: KvShard): void {
    this.#wait();
    const [q] = this.#receivedQueries!.tensors as [Tensor];
    const spec = this.#stateSpec(kv.v.shape[3]!);
    const states = this.#buffers.empty(spec, q.shape[2]!);
    const [out, lse] = states.tensors as [Tensor, Tensor];
    q.device.kernels.fill(out, 0);
    q.device.kernels.fill(lse, Number.NEGATIVE_INFINITY);
    if (q.size > 0) inner.attend(ctx, this.#createCall(q), { out, lse: this.#removeAxis(lse) }, kv);
    this.#returnedChunk = this.#buffers.empty(spec, this.#countReturnedRows());
    // Every row is sent to one rank only, so a second hop would gain nothing.
    this.#postGroupCast(this.#returnedChunk, states, {
      plan: this.#exchange.resultGroupCastPlan,
      name: "results",
      hierarchical: false,
    });
  }

  /** Merges the returned states into `state`, in rank order. */
  merge(state: AttentionState): void {
    this.#wait();
    const { group } = this.#pass;
    const [out, lse] = this.#returnedChunk!.tensors as [Tensor, Tensor];
    let row = 0;
    for (let owner = 0; owner < group.size; owner++) {
      for (const { start, length } of this.#exchange.queryRangesFrom(owner, group.rank)) {
        const [selectReturnedRows, selectOwnRows] = [
          this.#selectRows(row, row + length),
          this.#selectRows(start, start + length),
        ];
        const target = {
          out: selectOwnRows(state.out),
          lse: this.#removeAxis(selectOwnRows(this.#appendAxis(state.lse))),
        };
        group.device.kernels.merge(target, {
          out: selectReturnedRows(out),
          lse: this.#removeAxis(selectReturnedRows(lse)),
        });
        row += length;
      }
    }
  }

  /**
   * Computes the gradients of the received queries, which are sent back, and adds their contributions to dk and dv of
   * the local keys.
   */
  // oxlint-disable-next-line max-params -- as AttentionBackend.attendBackward
  attendBackward(ctx: Context, inner: AttentionBackend, { dk, dv }: QkvGrads, kv: KvShard): void {
    this.#wait();
    const [q, dOut, lse, delta] = this.#receivedQueries!.tensors as [Tensor, Tensor, Tensor, Tensor];
    const gradientSpec = [{ shape: q.shape, dtype: "float32" }] as const;
    const sums = this.#buffers.empty(gradientSpec, q.shape[2]!);
    const dq = sums.tensors[0]!;
    q.device.kernels.fill(dq, 0);
    const savedRows: SavedRows = { dOut, lse: this.#removeAxis(lse), delta: this.#removeAxis(delta) };
    if (q.size > 0) inner.attendBackward(ctx, { ...this.#createCall(q), ...savedRows }, { dq, dk, dv }, kv);
    this.#returnedChunk = this.#buffers.empty(gradientSpec, this.#call.q.shape[2]!);
    q.device.kernels.fill(this.#returnedChunk.tensors[0]!, 0);
    const { group } = this.#pass;
    const label = this.#formatLabel("gradients of queries");
    this.#work = group.groupReduce(this.#returnedChunk.wire, sums.wire, this.#exchange.queryGroupCastPlan, { label });
  }

  /** Adds the returned gradients to dq of the local queries. */
  addGradientsTo(dq: Tensor): void {
    this.#wait();
    dq.device.kernels.binary("add", dq, dq, this.#returnedChunk!.tensors[0]!);
  }

  [Symbol.dispose](): void {
    this.#wait();
    this.#buffers[Symbol.dispose]();
  }

  #postGroupCast(
    out: Chunk,
    input: Chunk,
    { plan, name, ...groupCastOptions }: GroupCastOptions & { plan: Exchange["queryGroupCastPlan"]; name: string },
  ): void {
    const { group, groupCastOptions: passOptions } = this.#pass;
    this.#work = group.groupCast(out.wire, input.wire, plan, {
      ...passOptions,
      ...groupCastOptions,
      label: this.#formatLabel(name),
    });
  }

  #formatLabel(name: string): string {
    return `${this.#pass.groupCastOptions.label}: ${name}`;
  }

  #wait(): void {
    this.#work?.wait();
    this.#work = undefined;
  }

  /** Creates the call of the received queries of all ranks together. */
  #createCall(q: Tensor): AttentionCall {
    const { queries } = this.#call;
    const spans = this.#exchange.querySpans(this.#pass.group.rank);
    return { ...this.#call, q, queries: { length: queries.length, axes: queries.axes, spans: () => spans } };
  }

  #stateSpec(valueHeadDim: number) {
    const { shape } = this.#call.q;
    return [
      { shape: shape.with(3, valueHeadDim), dtype: "float32" },
      { shape: shape.with(3, 1), dtype: "float32" },
    ] as const;
  }

  /** Returns the number of returned rows: each local query counts once for every rank to which it was sent. */
  #countReturnedRows(): number {
    const { rank, size } = this.#pass.group;
    let rows = 0;
    for (let owner = 0; owner < size; owner++) rows += this.#exchange.queries(owner).numRowsFrom(rank);
    return rows;
  }

  /** Returns [B,H,S] as [B,H,S,1], because rows must be the second-to-last axis of tensors that are sent. */
  #appendAxis(x: Tensor): Tensor {
    if (x.shape.length === 4) return x;
    return this.#buffers.takeOwnership(x.view({ shape: [...x.shape, 1], strides: [...x.strides, 1] }));
  }

  #removeAxis(x: Tensor): Tensor {
    return this.#buffers.takeOwnership(x.view({ shape: x.shape.slice(0, 3), strides: x.strides.slice(0, 3) }));
  }

  #selectRows(start: number, end: number): (x: Tensor) => Tensor {
    return (x) => this.#buffers.takeOwnership(rowsOf(x, start, end));
  }
}
