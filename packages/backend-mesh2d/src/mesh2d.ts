import { type AttentionBackend, type Call, type Context, type Keys, local } from "@mosaic/core";
import { checkBackward, checkCall, checkGrid, checkState } from "./check.ts";
import { runFused } from "./fused.ts";
import { bestGrid, type Grid } from "./grid.ts";
import { needOf } from "./need.ts";
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
 * mesh2d({ axis: "gpu", form: "fused" }).name; // => "mesh2d"
 * ```
 */
export function mesh2d(options: Mesh2DOptions = {}): AttentionBackend {
  const { axis = "sp", shape, form = "scheduled", inner = local(), computeToTransfer = 1 } = options;
  const label = `mesh2d(${axis})`;
  checkOptions(label, options);
  const plans = new Plans(computeToTransfer);
  return {
    name: "mesh2d",
    axes: [axis],

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
    checkCall(ctx, axis, call, keys);
    const { size } = ctx.mesh.group(axis);
    const grouped = call.q.shape[1]! / keys.k.shape[1]!;
    const grid = shape ? { rows: shape[0], columns: shape[1] } : bestGrid(size, grouped);
    checkGrid(`${label}, rank ${ctx.rank}`, grid, size);
    return { site: { ctx, axis, inner, label, need: needOf({ axis, grid }, call, keys.from) }, grid };
  }

  function run(pass: Pass, grid: Grid): void {
    if (form === "fused") runFused(pass);
    else runScheduled(pass, plans.planOf(pass, grid));
  }
}
