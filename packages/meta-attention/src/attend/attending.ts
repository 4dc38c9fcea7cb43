import { type AttentionState, emptyState, type KvBlock, type Tensor } from "@mosaic/core";
import { type Chunk, runsWhere } from "../chunks.ts";
import { edgesOf, type Look, looksOf } from "../exchange/chunk-memory.ts";
import { Fetch } from "../exchange/fetch.ts";
import type { Chosen } from "../route/choose.ts";
import { Holder } from "../holder.ts";
import { addLse } from "../logarithms.ts";
import { recordLook } from "../record-call.ts";
import { type AttendPlan, tileOf } from "./plan.ts";
import { headsOf, rowsOf } from "./views.ts";

// B batch, H heads, Hkv key heads, S tokens of this rank, D head size; parts: 2 with a gate, 1 without.

/** Queries [B,H,S,D], and keys and values [B,Hkv,S,D], of this rank's rows. */
export interface Qkv extends KvBlock {
  readonly q: Tensor;
}

/** A look that was taken, and what is kept of it. */
export interface Looked extends Look {
  readonly fetch: Fetch;
  /** exact: lse of the rows before and after this look; soft: the state over the chunk alone. */
  readonly before?: Tensor;
  readonly after?: Tensor;
  readonly state?: AttentionState;
}

/**
 * The attention of one forward, as it comes to be: first over own chunks, then over chosen ones, in one or more looks. Kernels
 * only; `routed` makes the result part of the tape. Holds what the backward needs.
 */
export class Attending implements Disposable {
  readonly plan: AttendPlan;
  readonly q: Tensor;
  readonly k: Tensor;
  readonly v: Tensor;
  readonly looked: Looked[] = [];
  /** What comes out, [B,S,parts·H·D]: over own chunks alone if there is a gate, then combined. */
  #packed: Tensor;
  #own: AttentionState;
  #combined: AttentionState;
  /** Query chunks and batch elements that looked at any chunk but their own: query · B + b. */
  readonly #curious = new Set<number>();
  readonly #holder = new Holder();
  /** The results, in float32 until they are rounded. */
  #sums = new Holder();
  /** One for each look, and what it looked at. */
  readonly #fetches: Fetch[] = [];
  readonly #chosen: Chosen[] = [];

  constructor(plan: AttendPlan, { q, k, v }: Qkv) {
    const hold = <T extends Disposable>(thing: T): T => this.#holder.hold(thing);
    const [batch, numHeads, rows] = q.shape as [number, number, number];
    this.plan = plan;
    this.q = hold(q.detach());
    this.k = hold(k.detach());
    this.v = hold(v.detach());
    const lse = (): Tensor => hold(q.device.empty([batch, numHeads, rows], "float32"));
    this.#packed = this.#sums.hold(q.device.empty([batch, rows, this.#parts * numHeads * plan.headDim], "float32"));
    this.#own = { out: this.#partOf(0), lse: lse() };
    this.#combined = { out: this.#partOf(this.#parts - 1), lse: lse() };
  }

  /** Over own chunks alone; without a gate `out` is that of `combined`. */
  get own(): AttentionState {
    return this.#own;
  }

  /** Combined; its lse is that over everything looked at. */
  get combined(): AttentionState {
    return this.#combined;
  }

  /** What each look looked at. */
  get looks(): readonly Chosen[] {
    return this.#chosen;
  }

  get fetches(): readonly Fetch[] {
    return this.#fetches;
  }

  /**
   * Looks at the chosen chunks; with the first look at one's own, too, while chosen ones travel. What came for an earlier look
   * is not sent again.
   */
  look(chosen: Chosen): void {
    const { plan, k, v } = this;
    const earlier = [...this.#fetches];
    recordLook(plan, chosen);
    const edges = edgesOf({ chosen, before: this.#chosen }, plan.chunks);
    const fetch = this.#holder.hold(new Fetch(plan, edges, { k, v }));
    if (earlier.length === 0) this.#attendOwn();
    this.#fetches.push(fetch);
    this.#chosen.push(chosen);
    fetch.wait();
    const isHere = (chunk: Chunk, b: number): boolean => earlier.some((each) => each.has(chunk, b));
    for (const each of this.#fetches) {
      const has = each === fetch ? (chunk: Chunk, b: number) => !isHere(chunk, b) : each.has.bind(each);
      for (const look of looksOf(chosen, plan.chunks, has)) this.looked.push(this.#fold(look, each));
    }
  }

  /** Batch elements [b0, b1) for which a query chunk of this rank looked, or did not look, at any chunk but its own. */
  runsThat(looked: boolean, query: number): (readonly [b0: number, b1: number])[] {
    const batch = this.q.shape[0]!;
    return runsWhere(batch, (b) => this.#curious.has(query * batch + b) === looked);
  }

  /** What came out, [B,S,parts·H·D] in the dtype of q: rounded now, once, and nothing is added any more. */
  result(): Tensor {
    const { q } = this;
    if (q.dtype === "float32") return this.#packed.detach();
    using _ = this.#sums;
    const { shape } = this.#packed;
    const exact = this.#packed;
    this.#sums = new Holder();
    this.#packed = this.#sums.hold(q.device.empty(shape, q.dtype));
    q.device.kernels.copy(this.#packed, exact);
    this.#own = { ...this.#own, out: this.#partOf(0) };
    this.#combined = { ...this.#combined, out: this.#partOf(this.#parts - 1) };
    return this.#packed.detach();
  }

  get #parts(): number {
    return this.plan.gate ? 2 : 1;
  }

  #partOf(part: number): Tensor {
    return this.#sums.hold(headsOf(this.#packed, part, this.plan));
  }

  #attendOwn(): void {
    const { plan, own, combined, q } = this;
    const { kernels } = q.device;
    kernels.fill(own.out, 0);
    kernels.fill(own.lse, -Infinity);
    for (const [query, chunk] of plan.chunks.own.entries()) {
      using rows = this.#rows(own, { query, b0: 0, b1: q.shape[0]! });
      using k = rowsOf(this.k, chunk);
      using v = rowsOf(this.v, chunk);
      kernels.attend(rows, rows.q, { k, v }, tileOf(plan, chunk, chunk));
    }
    kernels.copy(combined.lse, own.lse);
    if (plan.gate) kernels.copy(combined.out, own.out);
  }

  #fold(look: Look, fetch: Fetch): Looked {
    const { plan } = this;
    const { kernels } = this.q.device;
    using rows = this.#rows(this.combined, look);
    using keys = fetch.keys(look);
    const tile = tileOf(plan, plan.chunks.own[look.query]!, look.chunk);
    for (let { b0 } = look; b0 < look.b1; b0++) this.#curious.add(look.query * this.q.shape[0]! + b0);
    if (plan.combine === "exact") {
      const before = this.#copy(rows.lse);
      kernels.attend(rows, rows.q, keys, tile);
      return { ...look, fetch, before, after: this.#copy(rows.lse) };
    }
    const state = emptyState(rows.q);
    this.#holder.hold(state.out);
    this.#holder.hold(state.lse);
    kernels.attend(state, rows.q, keys, tile);
    addLse(rows.lse, state.lse);
    return { ...look, fetch, state };
  }

  #copy(x: Tensor): Tensor {
    const copy = this.#holder.hold(x.device.empty(x.shape, "float32"));
    x.device.kernels.copy(copy, x);
    return copy;
  }

  /** The rows of a query chunk, for some batch elements. */
  #rows({ out, lse }: AttentionState, { query, b0, b1 }: Pick<Look, "query" | "b0" | "b1">): Rows {
    const chunk = this.plan.chunks.own[query]!;
    const holder = new Holder();
    const part = (x: Tensor): Tensor => holder.hold(rowsOf(x, chunk, b0, b1));
    return { out: part(out), lse: part(lse), q: part(this.q), [Symbol.dispose]: () => holder[Symbol.dispose]() };
  }

  [Symbol.dispose](): void {
    this.#sums[Symbol.dispose]();
    this.#holder[Symbol.dispose]();
  }
}

interface Rows extends AttentionState, Disposable {
  readonly q: Tensor;
}
