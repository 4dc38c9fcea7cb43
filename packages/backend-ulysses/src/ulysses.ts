import {
  type AttentionBackend,
  type Call,
  checkOptionNames,
  type Context,
  type PlacedKv,
  local,
  omitAxes,
  type Tensor,
} from "@mosaic/core";
import { attendHeads, attendHeadsBackward, type Turn } from "./attend-heads.ts";
import { checkBackward, checkCall, checkMesh, checkNesting, checkState } from "./check.ts";
import { Exchange, type Piece } from "./exchange.ts";
import { partsOf } from "./heads.ts";
import { Scope } from "./memory.ts";
import { teamOf } from "./team.ts";

export interface UlyssesOptions {
  /** The mesh axis along which rows are exchanged for heads; "sp" if absent. */
  readonly axis?: string;
  /** What attends, for each rank's heads, to the whole sequence along the axis; the device's own kernel if absent. */
  readonly inner?: AttentionBackend;
}

/**
 * Head-parallel attention: the ranks along a mesh axis exchange rows for heads, so that each has all rows of some heads,
 * attends to them alone, and gives every rank the results for its rows. Two exchanges forward and two backward, however
 * many ranks there are; `ulyssesTraffic` gives the bytes.
 *
 * Heads need not divide: the first H % p ranks have one more, and with fewer heads than ranks the last ones have none. A
 * key head goes to every rank that has a query head of its group; the partial dk and dv are added up at home, in float32
 * and rank order. Any mask, any placement, shards of any length.
 *
 * `inner` sees the sequence whole along the axis and may communicate along others: with `inner: ring({ axis: "node" })`
 * the ranks of equal place in their nodes form a ring for their heads. The other way round, `ring({ axis: "node", inner:
 * ulysses({ axis: "gpu" }) })`, gives the same but exchanges rows for heads at every step of the ring.
 *
 * Throws, before anything is sent, an OptionError if the mesh lacks an axis or a sequence is not cut along it, and a
 * ShapeError or DTypeError if the tensors are not what their layouts say.
 *
 * Source: Jacobs et al., "DeepSpeed Ulysses", 2023.
 *
 * @example
 * ```ts
 * import { ring } from "@mosaic/backend-ring";
 * import { ulysses } from "@mosaic/backend-ulysses";
 * ulysses().axes; // => ["sp"]
 * ulysses({ axis: "gpu", inner: ring({ axis: "node" }) }).axes; // => ["node", "gpu"]
 * ```
 */
export function ulysses(options: UlyssesOptions = {}): AttentionBackend {
  checkOptionNames("ulysses", options, ["axis", "inner"] satisfies (keyof UlyssesOptions)[]);
  const { axis = "sp", inner = local() } = options;
  checkNesting({ axis, inner });
  return {
    name: "ulysses",
    // This one last: what its ranks hold between them is one shard of what `inner` attends to.
    axes: [...inner.axes, axis],

    check(ctx) {
      checkMesh(ctx, { axis, inner });
      inner.check?.(ctx);
    },

    attend(ctx, call, state, keys) {
      checkCall(ctx, { axis, inner }, call, keys);
      checkState(ctx, axis, state, call);
      const turn = turnOf(ctx, call, keys);
      if (!turn.team.sees) return;
      using results = new Scope();
      const { out, lse } = attendHeads(turn, call, keys, results);
      using back = new Exchange(turn.group, turn.label);
      const outs = back.toRows(out, turn.team.queries, results);
      const lses = back.toRows(lse, turn.team.queries, results);
      back.run();
      for (const [i, { heads, tensor }] of outs.entries()) {
        if (tensor.size === 0) continue;
        const into = { out: results.heads(state.out, heads), lse: results.heads(state.lse, heads) };
        ctx.device.kernels.merge(into, { out: tensor, lse: lses[i]!.tensor });
      }
    },

    attendBackward(ctx, call, grads, keys) {
      checkCall(ctx, { axis, inner }, call, keys);
      checkBackward(ctx, axis, call, { ...grads, k: keys.k });
      const turn = turnOf(ctx, call, keys);
      if (!turn.team.sees) return;
      using results = new Scope();
      const { dq, dk, dv } = attendHeadsBackward(turn, call, keys, results);
      using back = new Exchange(turn.group, turn.label);
      const dqs = back.toRows(dq, turn.team.queries, results);
      const dks = back.toRows(dk, turn.team.keys, results);
      const dvs = back.toRows(dv, turn.team.keys, results);
      back.run();
      add(grads.dq, dqs, results);
      add(grads.dk, dks, results);
      add(grads.dv, dvs, results);
    },
  };

  function turnOf(ctx: Context, call: Call, { k, from }: PlacedKv): Turn {
    const group = ctx.mesh.group(axis);
    const counts = { heads: call.q.shape[1]!, kvHeads: k.shape[1]! };
    const team = teamOf({ axis, size: group.size, inner }, call, { ...counts, from });
    const share = { queries: team.queries.heads[group.rank]!, keys: team.keys.heads[group.rank]! };
    const places = { at: omitAxes(call.at, [axis]), from: omitAxes(from, [axis]) };
    return { ctx, inner, group, label: `ulysses(${axis})`, team, parts: partsOf(counts, share), ...places };
  }
}

/** Adds every rank's part, in rank order: the same bits every time. */
function add(into: Tensor, pieces: readonly Piece[], scope: Scope): void {
  for (const { heads, tensor } of pieces) {
    if (tensor.size === 0) continue;
    const sum = scope.heads(into, heads);
    into.device.kernels.binary("add", sum, sum, tensor);
  }
}
