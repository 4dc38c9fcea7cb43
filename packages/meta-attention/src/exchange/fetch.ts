import type { KvBlock, Tensor, Transfer, Work } from "@mosaic/core";
import type { AttendPlan } from "../attend/plan.ts";
import { rowsOf } from "../attend/views.ts";
import type { Chunk } from "../chunks.ts";
import { Holder } from "../holder.ts";
import { type Block, blockOf, ChunkMemory, type Edges, ownRows, type Run } from "./chunk-memory.ts";

/**
 * The gradients of fetched chunks on their way home, along the same edges, in float32: contributions are added to what `sums` shows,
 * `post` sends them, `land` adds those that arrive to this rank's own dk and dv.
 */
export class GradientReturn implements Disposable {
  readonly #plan: AttendPlan;
  readonly #edges: Edges;
  readonly #own: KvBlock;
  readonly #memory: ChunkMemory;
  readonly #holder = new Holder();
  #landing: (Run & { readonly tensor: Tensor })[] = [];
  #work: Work | undefined;

  /** `own`: this rank's dk and dv, float32 [B,Hkv,S,D]. */
  constructor(plan: AttendPlan, edges: Edges, own: KvBlock) {
    this.#plan = plan;
    this.#edges = edges;
    this.#own = own;
    this.#memory = this.#holder.hold(
      new ChunkMemory(own.k.device, edges.receives, { ...plan, dtype: "float32" }).clear(),
    );
  }

  /** Where to add the gradients of a run's keys and values: k stands for dk, v for dv. */
  sums({ chunk, b0, b1 }: Run): Block {
    if (chunk.owner !== this.#plan.chunks.rank) return this.#memory.block({ chunk, b0, b1 });
    return ownRows(this.#own, { chunk, b0, b1 });
  }

  post(): void {
    const { sends, receives } = this.#edges;
    if (sends.length + receives.length === 0) return;
    const { group, label, numKvHeads, headDim } = this.#plan;
    const { device } = group;
    this.#landing = sends.map((run) => {
      const shape = [run.b1 - run.b0, 2, numKvHeads, run.chunk.length, headDim];
      return { ...run, tensor: this.#holder.hold(device.empty(shape, "float32")) };
    });
    const transfers: Transfer[] = [
      ...receives.map((run) => ({ tensor: this.#holder.hold(this.#memory.message(run)), to: run.peer })),
      ...sends.map((run, i) => ({ tensor: this.#landing[i]!.tensor, from: run.peer })),
    ];
    this.#work = group.sendRecv(transfers, { label: `${label} backward` });
  }

  land(): void {
    this.#work?.wait();
    this.#work = undefined;
    for (const { chunk, b0, b1, tensor } of this.#landing) {
      using arrived = blockOf(tensor);
      for (const part of ["k", "v"] as const) {
        using sum = rowsOf(this.#own[part], chunk, b0, b1);
        sum.device.kernels.binary("add", sum, sum, arrived[part]);
      }
    }
  }

  [Symbol.dispose](): void {
    this.#work?.wait();
    this.#holder[Symbol.dispose]();
  }
}

/**
 * The chosen chunks' keys and values, on their way to whoever chose them: posted when made, there after `wait`.
 * In the dtype of this rank's own k and v, which are [B,Hkv,S,D].
 */
export class Fetch implements Disposable {
  readonly edges: Edges;
  readonly #rank: number;
  readonly #own: KvBlock;
  readonly #memory: ChunkMemory;
  /** What is sent, until it is. */
  readonly #messages = new Holder();
  #work: Work | undefined;

  constructor(plan: AttendPlan, edges: Edges, own: KvBlock) {
    this.edges = edges;
    this.#rank = plan.chunks.rank;
    this.#own = own;
    this.#memory = new ChunkMemory(own.k.device, edges.receives, { ...plan, dtype: own.k.dtype });
    this.#work = this.#post(plan);
  }

  #post({ group, label, numKvHeads, headDim }: AttendPlan): Work | undefined {
    const { sends, receives } = this.edges;
    if (sends.length + receives.length === 0) return undefined;
    const holder = this.#messages;
    const packed = new Map<number, ChunkMemory>();
    for (const run of sends) {
      if (packed.has(run.chunk.index)) continue;
      const { device, dtype, shape } = this.#own.k;
      const whole: Run = { chunk: run.chunk, b0: 0, b1: shape[0]! };
      const memory = holder.hold(new ChunkMemory(device, [whole], { numKvHeads, headDim, dtype }));
      this.#pack(memory, whole);
      packed.set(run.chunk.index, memory);
    }
    const transfers: Transfer[] = [
      ...sends.map((run) => ({ tensor: holder.hold(packed.get(run.chunk.index)!.message(run)), to: run.peer })),
      ...receives.map((run) => ({ tensor: holder.hold(this.#memory.message(run)), from: run.peer })),
    ];
    return group.sendRecv(transfers, { label });
  }

  /** Own keys and values side by side. */
  #pack(memory: ChunkMemory, run: Run): void {
    using block = memory.block(run);
    for (const part of ["k", "v"] as const) {
      using rows = rowsOf(this.#own[part], run.chunk);
      rows.device.kernels.copy(block[part], rows);
    }
  }

  /** Later work finds the chunks there. */
  wait(): void {
    this.#work?.wait();
    this.#work = undefined;
    this.#messages[Symbol.dispose]();
  }

  /** Whether a foreign chunk came, or comes, for a batch element. */
  has(chunk: Chunk, b: number): boolean {
    return this.edges.receives.some((run) => run.chunk === chunk && run.b0 <= b && b < run.b1);
  }

  /** Keys and values of a run, wherever they lie. */
  keys({ chunk, b0, b1 }: Run): Block {
    if (chunk.owner !== this.#rank) return this.#memory.block({ chunk, b0, b1 });
    return ownRows(this.#own, { chunk, b0, b1 });
  }

  [Symbol.dispose](): void {
    this.wait();
    this.#memory[Symbol.dispose]();
  }
}
