import type {
  AttentionBackend,
  AttentionState,
  Call,
  Context,
  Coordinate,
  PlacedKv,
  ProcessGroup,
  QkvGrads,
  SavedRows,
  Tensor,
} from "@mosaic/core";
import { Exchange } from "./exchange.ts";
import type { Heads, Share } from "./heads.ts";
import { Scope } from "./memory.ts";
import type { Team } from "./team.ts";

/** One rank's part of one call. */
export interface Turn {
  readonly ctx: Context;
  readonly inner: AttentionBackend;
  readonly group: ProcessGroup;
  /** Who calls, as messages and traces shall say. */
  readonly label: string;
  readonly team: Team;
  /** This rank's heads, in parts that kernels can serve; none for a rank without heads. */
  readonly parts: readonly Share[];
  /** Where the rows of all ranks along the axis are: coordinates without it. */
  readonly at: Call["at"];
  readonly from: Coordinate;
}

/** Fetches all rows of this rank's heads and attends to them; the state [B,h,ΣS,…] lies in `results`. */
export function attendHeads(turn: Turn, call: Call, keys: PlacedKv, results: Scope): AttentionState {
  const { ctx, inner, team, parts, at, from } = turn;
  using scope = new Scope();
  using exchange = new Exchange(turn.group, turn.label);
  const q = exchange.toHeads(call.q, team.queries, scope);
  const k = exchange.toHeads(keys.k, team.keys, scope);
  const v = exchange.toHeads(keys.v, team.keys, scope);
  exchange.run();
  const out = results.filled(ctx.device, q.shape, 0);
  const lse = results.filled(ctx.device, q.shape.slice(0, -1), Number.NEGATIVE_INFINITY);
  for (const { queries, keys: read } of parts) {
    const mine = pick(scope, queries, { q, out, lse });
    const block = { ...pick(scope, read, { k, v }), from };
    inner.attend(ctx, { ...call, q: mine.q, at }, { out: mine.out, lse: mine.lse }, block);
  }
  return { out, lse };
}

/** The backward of it; dq [B,h,ΣS,D] of this rank's heads, and its part of the dk and dv of their keys, in `results`. */
export function attendHeadsBackward(turn: Turn, call: Call & SavedRows, keys: PlacedKv, results: Scope): QkvGrads {
  const { ctx, inner, team, parts, at, from } = turn;
  using scope = new Scope();
  using exchange = new Exchange(turn.group, turn.label);
  const q = exchange.toHeads(call.q, team.queries, scope);
  const dOut = exchange.toHeads(call.dOut, team.queries, scope);
  const lse = exchange.toHeads(call.lse, team.queries, scope);
  const delta = exchange.toHeads(call.delta, team.queries, scope);
  const k = exchange.toHeads(keys.k, team.keys, scope);
  const v = exchange.toHeads(keys.v, team.keys, scope);
  exchange.run();
  const dq = results.filled(ctx.device, q.shape, 0);
  const dk = results.filled(ctx.device, k.shape, 0);
  const dv = results.filled(ctx.device, v.shape, 0);
  for (const { queries, keys: read } of parts) {
    const { dq: dqPart, ...mine } = pick(scope, queries, { q, dOut, lse, delta, dq });
    const { dk: dkPart, dv: dvPart, ...block } = pick(scope, read, { k, v, dk, dv });
    inner.attendBackward(ctx, { ...call, ...mine, at }, { dq: dqPart, dk: dkPart, dv: dvPart }, { ...block, from });
  }
  return { dq, dk, dv };
}

/** The same heads of several tensors. */
function pick<Name extends string>(scope: Scope, heads: Heads, tensors: Record<Name, Tensor>): Record<Name, Tensor> {
  const entries = Object.entries<Tensor>(tensors).map(([name, x]) => [name, scope.heads(x, heads)]);
  return Object.fromEntries(entries) as Record<Name, Tensor>;
}
