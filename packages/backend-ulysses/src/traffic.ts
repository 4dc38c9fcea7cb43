import { type AttentionBackend, type Coordinate, type DType, dtypeBytes, local, type Traffic } from "@mosaic/core";
import type { HeadCounts } from "./heads.ts";
import type { Split } from "./exchange.ts";
import { type TeamCall, teamOf } from "./team.ts";

export interface UlyssesTrafficOptions extends HeadCounts {
  /** The exchange's axis and inner backend, as given to `ulysses`. */
  readonly axis?: string;
  readonly inner?: AttentionBackend;
  /** Length of every mesh axis. */
  readonly mesh: Coordinate;
  /** The call of the rank in question: its place, the mask, and the layouts of queries and keys. */
  readonly call: TeamCall;
  /** Where its keys come from; `call.at` if absent. */
  readonly from?: Coordinate;
  readonly batch: number;
  readonly headDim: number;
  /** What q, k, v and dOut are stored in. */
  readonly dtype: DType;
}

/**
 * What one rank sends and receives along the axis, in closed form: bytes and messages, those of `inner` not counted.
 *
 * A rank of h of the H query heads and g key heads, with S of the n rows and T of the m keys, sends
 *
 * - forward: S·(H − h) rows of q, T·(Σ over the others of their g) of k and of v; then (n − S)·h rows of float32 out and lse;
 * - backward: as many rows of q and dOut and of float32 lse and delta, the same of k and v; then, in float32, (n − S)·h
 *   rows of dq and (m − T)·g of dk and of dv.
 *
 * It receives the mirror image. If nobody sees anything, nothing is sent.
 *
 * @example
 * ```ts
 * import { contiguous, full, layoutOf } from "@mosaic/core";
 * import { ulyssesTraffic } from "@mosaic/backend-ulysses";
 * const mesh = { sp: 4 };
 * const tokens = layoutOf({ mesh, axes: ["sp"], placement: contiguous(), length: 400 });
 * const call = { at: { sp: 3 }, mask: full().slices(400, 400), queries: tokens, keys: tokens };
 * const sizes = { batch: 1, heads: 8, kvHeads: 8, headDim: 64, dtype: "bfloat16" } as const;
 * // Three quarters of q, k and v leave as bfloat16, three quarters of out return as float32, with lse.
 * ulyssesTraffic({ mesh, call, ...sizes }).forward.bytesSent; // => 386400
 * ```
 */
export function ulyssesTraffic(options: UlyssesTrafficOptions): {
  readonly forward: Traffic;
  readonly backward: Traffic;
} {
  const { axis = "sp", inner = local(), mesh, call, from = call.at, batch, heads, kvHeads, headDim, dtype } = options;
  const team = teamOf({ axis, size: mesh[axis]!, inner }, call, { heads, kvHeads, from });
  const nothing = { bytesSent: 0, bytesReceived: 0, messagesSent: 0 };
  if (!team.sees) return { forward: nothing, backward: nothing };
  const rank = call.at[axis]!;
  const wide = batch * headDim * dtypeBytes[dtype];
  const sums = batch * headDim * dtypeBytes.float32;
  const stats = batch * dtypeBytes.float32;
  const leave = (split: Split, bytes: readonly number[]) => outward(split, rank, bytes);
  const back = (split: Split, bytes: readonly number[]) => mirrored(outward(split, rank, bytes));
  const { queries, keys } = team;
  return {
    forward: total([leave(queries, [wide]), leave(keys, [wide, wide]), back(queries, [sums, stats])]),
    backward: total([
      leave(queries, [wide, wide, stats, stats]),
      leave(keys, [wide, wide]),
      back(queries, [sums]),
      back(keys, [sums, sums]),
    ]),
  };
}

/** Bytes and messages both ways. */
interface Flow extends Traffic {
  readonly messagesReceived: number;
}

/** Rows for heads, of tensors with so many bytes per row and head. */
function outward({ rows, heads }: Split, rank: number, bytes: readonly number[]): Flow {
  const width = bytes.reduce((sum, each) => sum + each, 0);
  const others = rows.map((_, other) => other).filter((other) => other !== rank);
  const sent = others.map((other) => rows[rank]! * heads[other]!.count);
  const received = others.map((other) => rows[other]! * heads[rank]!.count);
  return {
    bytesSent: width * sum(sent),
    bytesReceived: width * sum(received),
    messagesSent: bytes.length * sent.filter((count) => count > 0).length,
    messagesReceived: bytes.length * received.filter((count) => count > 0).length,
  };
}

/** Heads for rows: what was sent comes back, what was received returns. */
function mirrored(flow: Flow): Flow {
  return {
    bytesSent: flow.bytesReceived,
    bytesReceived: flow.bytesSent,
    messagesSent: flow.messagesReceived,
    messagesReceived: flow.messagesSent,
  };
}

function total(flows: readonly Flow[]): Traffic {
  return {
    bytesSent: sum(flows.map(({ bytesSent }) => bytesSent)),
    bytesReceived: sum(flows.map(({ bytesReceived }) => bytesReceived)),
    messagesSent: sum(flows.map(({ messagesSent }) => messagesSent)),
  };
}

function sum(counts: readonly number[]): number {
  return counts.reduce((total, count) => total + count, 0);
}
