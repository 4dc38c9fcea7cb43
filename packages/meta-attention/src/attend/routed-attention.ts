import { type AttentionState, emptyState, type KvBlock, type Tensor, type Tile } from "@mosaic/core";
import { type Chunk, findRuns } from "../chunks.ts";
import { type ChunkRead, chunkReads, planTransfers } from "../exchange/chunk-transfers.ts";
import { ChunkFetch } from "../exchange/fetch.ts";
import { chunkRows, headsView, pairView, reduceInto, ResourceStack, zerosLike } from "../tensor-views.ts";
import { logAddExp, softmaxShare } from "../log-softmax.ts";
import { recordAttention } from "../record-call.ts";
import type { RoutedAttentionConfig } from "../options.ts";
import type { ChosenChunks } from "../route/choose.ts";

/** Creates the tile of the queries of one chunk and the keys of another, or the same, chunk. */
export function createTile({ chunks: { mask }, scale }: RoutedAttentionConfig, queries: Chunk, keys: Chunk): Tile {
  return { q: queries.spans, k: keys.spans, mask, scale };
}

// B batch, H heads, Hkv KV heads, S tokens of this rank, D head size; parts: 2 with a gate, 1 without.

/** Queries [B,H,S,D], and keys and values [B,Hkv,S,D], of this rank's rows. */
export interface Qkv extends KvBlock {
  readonly q: Tensor;
}

/** A chunk that was attended to, and the data that its backward needs. */
export interface AttendedChunk extends ChunkRead {
  readonly fetch: ChunkFetch;
  /** exact: lse of the rows before and after this chunk; soft: the state over the chunk alone. */
  readonly lseBefore?: Tensor;
  readonly lseAfter?: Tensor;
  readonly state?: AttentionState;
}

/**
 * The attention of one forward: first over own chunks, then over chosen ones, in one or more calls of
 * `attendChosenChunks`. Calls kernels only; `recordRoutedAttention` records the result on the tape. Holds the data that
 * the backward needs.
 */
export class RoutedAttention implements Disposable {
  readonly config: RoutedAttentionConfig;
  readonly q: Tensor;
  readonly k: Tensor;
  readonly v: Tensor;
  readonly attendedChunks: AttendedChunk[] = [];
  /**
   * The output [B,S,parts·H·D]: with a gate, first the attention over own chunks only; last, the combined attention.
   */
  #packed: Tensor;
  #ownState: AttentionState;
  #combined: AttentionState;
  /** Query chunks and batch elements that attended to any other chunk, as query · B + b. */
  readonly #attendedRows = new Set<number>();
  readonly #resources = new ResourceStack();
  /** The results, in float32 until they are rounded. */
  #outputs = new ResourceStack();
  /** The fetch of each call of `attendChosenChunks`, and its chosen chunks (`#chosenByCall`). */
  readonly #fetches: ChunkFetch[] = [];
  readonly #chosenByCall: ChosenChunks[] = [];

  constructor(config: RoutedAttentionConfig, { q, k, v }: Qkv) {
    const trackResource = <T extends Disposable>(resource: T): T => this.#resources.use(resource);
    const [batch, numHeads, rows] = q.shape as [number, number, number];
    this.config = config;
    this.q = trackResource(q.detach());
    this.k = trackResource(k.detach());
    this.v = trackResource(v.detach());
    const lse = (): Tensor => trackResource(q.device.empty([batch, numHeads, rows], "float32"));
    this.#packed = this.#outputs.use(
      q.device.empty([batch, rows, this.#numParts * numHeads * config.headDim], "float32"),
    );
    this.#ownState = { out: this.#outputPart(0), lse: lse() };
    this.#combined = { out: this.#outputPart(this.#numParts - 1), lse: lse() };
  }

  /** The state over own chunks only. Without a gate, `out` is that of `combinedState`. */
  get ownState(): AttentionState {
    return this.#ownState;
  }

  /** The combined state. Its lse is that over all keys that were attended to. */
  get combinedState(): AttentionState {
    return this.#combined;
  }

  /** The chosen chunks of each call of `attendChosenChunks`. */
  get chosenByCall(): readonly ChosenChunks[] {
    return this.#chosenByCall;
  }

  get fetches(): readonly ChunkFetch[] {
    return this.#fetches;
  }

  /**
   * Attends to the chosen chunks. The first call also attends to the own chunks, while the chosen ones are transferred.
   * Chunks that an earlier call fetched are not sent again.
   */
  attendChosenChunks(chosen: ChosenChunks): void {
    const { config, k, v } = this;
    const earlierFetches = [...this.#fetches];
    recordAttention(config, chosen);
    const transfers = planTransfers({ chosen, previousSelections: this.#chosenByCall }, config.chunks);
    const fetch = this.#resources.use(new ChunkFetch(config, transfers, { k, v }));
    if (earlierFetches.length === 0) this.#attendOwnChunks();
    this.#fetches.push(fetch);
    this.#chosenByCall.push(chosen);
    fetch.wait();
    const wasFetched = (chunk: Chunk, b: number): boolean => earlierFetches.some((each) => each.isFetched(chunk, b));
    for (const chunkFetch of this.#fetches) {
      const isAvailable =
        chunkFetch === fetch
          ? (chunk: Chunk, b: number) => !wasFetched(chunk, b)
          : chunkFetch.isFetched.bind(chunkFetch);
      for (const read of chunkReads(chosen, config.chunks, isAvailable))
        this.attendedChunks.push(this.#attendChunk(read, chunkFetch));
    }
  }

  /**
   * Returns the runs of batch elements [b0, b1) for which a query chunk of this rank attended, or did not attend, to
   * any other chunk.
   */
  batchRuns(hasAttended: boolean, query: number): (readonly [b0: number, b1: number])[] {
    const batch = this.q.shape[0]!;
    return findRuns(batch, (b) => this.#attendedRows.has(query * batch + b) === hasAttended);
  }

  /** Returns the output [B,S,parts·H·D] in the dtype of q. It is rounded once, and nothing may be added afterwards. */
  result(): Tensor {
    const { q } = this;
    if (q.dtype === "float32") return this.#packed.detach();
    using _ = this.#outputs;
    const { shape } = this.#packed;
    const float32Result = this.#packed;
    this.#outputs = new ResourceStack();
    this.#packed = this.#outputs.use(q.device.empty(shape, q.dtype));
    q.device.kernels.copy(this.#packed, float32Result);
    this.#ownState = { ...this.#ownState, out: this.#outputPart(0) };
    this.#combined = { ...this.#combined, out: this.#outputPart(this.#numParts - 1) };
    return this.#packed.detach();
  }

  get #numParts(): number {
    return this.config.gate ? 2 : 1;
  }

  #outputPart(partIndex: number): Tensor {
    return this.#outputs.use(headsView(this.#packed, partIndex, this.config));
  }

  #attendOwnChunks(): void {
    const { config, ownState, combinedState, q } = this;
    const { kernels } = q.device;
    kernels.fill(ownState.out, 0);
    kernels.fill(ownState.lse, -Infinity);
    for (const [query, chunk] of config.chunks.own.entries()) {
      using rows = this.#viewQueryRows(ownState, { query, b0: 0, b1: q.shape[0]! });
      using k = chunkRows(this.k, chunk);
      using v = chunkRows(this.v, chunk);
      kernels.attend(rows, rows.q, { k, v }, createTile(config, chunk, chunk));
    }
    kernels.copy(combinedState.lse, ownState.lse);
    if (config.gate) kernels.copy(combinedState.out, ownState.out);
  }

  #attendChunk(read: ChunkRead, fetch: ChunkFetch): AttendedChunk {
    const { config } = this;
    const { kernels } = this.q.device;
    using rows = this.#viewQueryRows(this.combinedState, read);
    using keys = fetch.kv(read);
    const tile = createTile(config, config.chunks.own[read.query]!, read.chunk);
    for (let { b0 } = read; b0 < read.b1; b0++) this.#attendedRows.add(read.query * this.q.shape[0]! + b0);
    if (config.combine === "exact") {
      const lseBefore = this.#copy(rows.lse);
      kernels.attend(rows, rows.q, keys, tile);
      return { ...read, fetch, lseBefore, lseAfter: this.#copy(rows.lse) };
    }
    const state = emptyState(rows.q);
    this.#resources.use(state.out);
    this.#resources.use(state.lse);
    kernels.attend(state, rows.q, keys, tile);
    logAddExp(rows.lse, state.lse);
    return { ...read, fetch, state };
  }

  #copy(x: Tensor): Tensor {
    const copy = this.#resources.use(x.device.empty(x.shape, "float32"));
    x.device.kernels.copy(copy, x);
    return copy;
  }

  /** Returns the rows of a query chunk, for some batch elements. */
  #viewQueryRows({ out, lse }: AttentionState, { query, b0, b1 }: Pick<ChunkRead, "query" | "b0" | "b1">): ChunkRows {
    const chunk = this.config.chunks.own[query]!;
    const resources = new ResourceStack();
    const viewRows = (x: Tensor): Tensor => resources.use(chunkRows(x, chunk, b0, b1));
    return {
      out: viewRows(out),
      lse: viewRows(lse),
      q: viewRows(this.q),
      [Symbol.dispose]: () => resources[Symbol.dispose](),
    };
  }

  [Symbol.dispose](): void {
    this.#outputs[Symbol.dispose]();
    this.#resources[Symbol.dispose]();
  }
}

interface ChunkRows extends AttentionState, Disposable {
  readonly q: Tensor;
}

/**
 * Returns the share of the softmax over all attended keys that falls on the chunk of a read, for each of its rows
 * [b,H,S].
 */
export function chunkMass(
  { combinedState, config }: RoutedAttention,
  { query, b0, b1, lseBefore, lseAfter, state }: AttendedChunk,
): Tensor {
  using lse = chunkRows(combinedState.lse, config.chunks.own[query]!, b0, b1);
  if (state) return softmaxShare(state.lse, lse);
  const mass = softmaxShare(lseAfter!, lse);
  using massBefore = softmaxShare(lseBefore!, lse);
  lse.device.kernels.binary("sub", mass, mass, massBefore);
  return mass;
}

/**
 * Distribution of the softmax of each of this rank's chunks over chunks, [B,c,N] each; 0 for chunks that were not
 * attended to.
 */
export interface AttentionMass {
  /** Mean over heads and rows. */
  readonly mean: Tensor;
  /** Maximum over heads and rows. */
  readonly peak: Tensor;
}

/** Computes the attention mass from available values: the lse of each part and that of the whole. */
export function attentionMass(attention: RoutedAttention): AttentionMass {
  const { ownState, combinedState, config, q } = attention;
  const { kernels } = q.device;
  const { chunks } = config;
  const batch = q.shape[0]!;
  using emptyMass = q.device.empty([batch, chunks.own.length, chunks.all.length], "float32");
  const result = { mean: zerosLike(emptyMass), peak: zerosLike(emptyMass) };
  const writeMass = (mass: Tensor, at: { b0: number; b1: number; i: number; j: number }): void => {
    using mean = pairView(result.mean, at, 3);
    using peak = pairView(result.peak, at, 3);
    reduceInto("sum", mean, mass);
    kernels.scalar("mul", mean, mean, 1 / (mass.shape[1]! * mass.shape[2]!));
    reduceInto("max", peak, mass);
  };
  using ownShares = softmaxShare(ownState.lse, combinedState.lse);
  for (const [i, chunk] of chunks.own.entries()) {
    using rows = chunkRows(ownShares, chunk);
    writeMass(rows, { b0: 0, b1: batch, i, j: chunk.index });
  }
  for (const read of attention.attendedChunks) {
    using mass = chunkMass(attention, read);
    writeMass(mass, { b0: read.b0, b1: read.b1, i: read.query, j: read.chunk.index });
  }
  return result;
}
