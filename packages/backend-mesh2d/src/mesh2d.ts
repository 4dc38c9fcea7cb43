import { type AttentionBackend, ByPlace, type Call, type Context, type Keys, local } from "@mosaic/core";
import { checkBackward, checkCall, checkMesh, checkState } from "./check.ts";
import { type FormOptions, formOf } from "./form.ts";
import { runFused } from "./fused.ts";
import { bestGrid, type Grid } from "./grid.ts";
import { Needs, shardsAlong } from "./need.ts";
import { checkOptions, type Mesh2DOptions } from "./options.ts";
import { backwardPass, forwardPass, type Pass, type Site } from "./pass.ts";
import { Plans } from "./plans.ts";
import { runScheduled } from "./scheduled.ts";

/**
 * Attention in two dimensions: the ranks of a mesh axis form a grid; queries travel along its rows, keys and values along
 * its columns, and each rank computes a tile of them. The states over parts of the keys go back to the queries' rank and
 * merge there, in float32; in backward dq goes back along rows, dk and dv along columns. With p ranks in a square, each
 * sends O(√p) chunks where a ring sends O(p); `mesh2dTraffic` gives the bytes for any mask, placement and grid.
 *
 * What a mask leaves empty is neither computed nor sent. Chunks go straight from the rank that has them to those that
 * compute on them, and sums straight back; they are added in the same order every time. `shape: [p, 1]` gathers keys
 * only, like a ring; `shape: [1, p]` queries only.
 *
 * `form` says when it communicates: "fused" gathers, computes in one call and sends sums home; "scheduled" goes block by
 * block and hides transfers behind compute, one at a time or, with `channels: 2`, one along the row beside one along the
 * column; "auto" takes the quicker. All give the same results but for rounding, and send the same bytes.
 *
 * Throws, before anything is sent, an OptionError if the mesh lacks the axis, the shape does not fit its length, or a
 * sequence is not cut along it, and a ShapeError or DTypeError if the tensors are not what their layouts say.
 *
 * Source: Elango, "Attention2D", 2025 (arXiv 2503.15758), the fused form; "Mesh-Attention", 2025 (arXiv 2512.20968), tiles
 * of any shape and the scheduled form.
 *
 * @example
 * ```ts
 * import { mesh2d } from "@mosaic/backend-mesh2d";
 * mesh2d({ shape: [4, 2] }).axes; // => ["sp"]
 * mesh2d({ axis: "gpu", shape: [8, 32], form: "scheduled", channels: 2 }).name; // => "mesh2d"
 * ```
 */
export function mesh2d(options: Mesh2DOptions = {}): AttentionBackend {
  const { axis = "sp", shape, form = "auto", inner = local(), halfSpeedRows = 24 } = options;
  const { channels = 1, computeToTransfer = 1, links = [1, 1] } = options;
  const label = `mesh2d(${axis})`;
  checkOptions(label, options);
  const needs = new ByPlace<Needs>([axis]);
  const plans = new Plans({ channels, computeToTransfer, links });
  return {
    name: "mesh2d",
    axes: [axis],

    check(ctx) {
      checkMesh(ctx, axis, shape);
      inner.check?.(ctx);
    },

    withShape: (other) => mesh2d({ ...options, shape: other }),

    attend(ctx, call, state, keys) {
      const { site, grid } = open(ctx, call, keys);
      checkState(`${label}, rank ${ctx.rank}`, state, call);
      run(forwardPass(site, call, state, keys), grid);
    },

    attendBackward(ctx, call, grads, keys) {
      const { site, grid } = open(ctx, call, keys);
      checkBackward(`${label} backward, rank ${ctx.rank}`, call, grads, keys);
      run(backwardPass(site, call, grads, keys), grid);
    },
  };

  function open(ctx: Context, call: Call, keys: Keys): { readonly site: Site; readonly grid: Grid } {
    checkMesh(ctx, axis, shape);
    checkCall(ctx, axis, call, keys);
    const { size } = ctx.mesh.group(axis);
    const grouped = call.q.shape[1]! / keys.k.shape[1]!;
    const grid = shape ? { rows: shape[0], columns: shape[1] } : bestGrid(size, grouped);
    const need = needs.of(call, keys.from, () => new Needs(shardsAlong(axis, size, call, keys.from)));
    return { site: { ctx, axis, inner, label, need: need.of(grid, keys.from[axis]!) }, grid };
  }

  function run(pass: Pass, grid: Grid): void {
    if (form === "fused") runFused(pass);
    else {
      const plan = plans.planOf(pass, grid);
      if (form === "auto" && formOf({ plan, ...tileOf(pass, grid), halfSpeedRows }) === "fused") runFused(pass);
      else runScheduled(pass, plan);
    }
  }
}

function tileOf({ queries, keys }: Pass, { rows, columns }: Grid): Pick<FormOptions, "queries" | "keys"> {
  return { queries: { chunks: columns, rows: queries.rows }, keys: { chunks: rows, rows: keys.rows } };
}
