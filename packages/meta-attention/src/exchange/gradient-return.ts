import type { KvBlock, Tensor, Transfer, Work } from "@mosaic/core";
import type { AttendPlan } from "../attend/plan.ts";
import { rowsOf } from "../attend/views.ts";
import { Holder } from "../holder.ts";
import { type Block, blockOf, ChunkMemory, ownRows } from "./chunk-memory.ts";
import type { Edges, Run } from "./edges.ts";

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
