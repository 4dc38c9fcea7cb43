import type { Plan } from "./plan.ts";

export type Form = "fused" | "scheduled";

/** What the choice of a form rests on: equal on all ranks, so that they choose alike. */
export interface FormOptions {
  /** The plan by which the scheduled form would run. */
  readonly plan: Plan;
  /** The tile in chunks, and what a chunk holds on the average over ranks. */
  readonly queries: { readonly chunks: number; readonly rows: number };
  readonly keys: { readonly chunks: number; readonly rows: number };
  /** Rows at which a kernel call runs at half its speed. */
  readonly halfSpeedRows: number;
}

/**
 * The form that takes less time, the fused one of equals.
 *
 * A kernel call on n queries and m keys takes n·m · (1 + h/n)(1 + h/m), for h = halfSpeedRows: small calls keep a kernel less
 * busy. The fused form computes the whole tile in one call, after its transfers and before those of its sums; the scheduled
 * form computes chunk by chunk, behind its transfers as well as the plan can.
 */
export function formOf({ plan, queries, keys, halfSpeedRows }: FormOptions): Form {
  const loss = (n: number, m: number) => (1 + halfSpeedRows / Math.max(1, n)) * (1 + halfSpeedRows / Math.max(1, m));
  const { transfer, compute, makespan } = plan;
  const fused = transfer + compute * loss(queries.chunks * queries.rows, keys.chunks * keys.rows);
  const hidden = makespan / Math.max(transfer, compute);
  const scheduled = hidden * Math.max(transfer, compute * loss(queries.rows, keys.rows));
  return fused <= scheduled ? "fused" : "scheduled";
}
