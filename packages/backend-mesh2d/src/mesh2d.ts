import {
  type AttentionBackend,
  LayoutCache,
  type Call,
  type Context,
  type Coordinate,
  type InParts,
  type PlacedKv,
  local,
} from "@mosaic/core";
import { checkBackward, checkCall, checkMesh, checkState } from "./check.ts";
import { Folding } from "./folding.ts";
import { type FormOptions, formOf } from "./form.ts";
import { Fused } from "./fused.ts";
import { bestGrid } from "./grid.ts";
import { Needs, shardsAlong } from "./need.ts";
import { checkOptions, type Mesh2DOptions } from "./options.ts";
import {
  backwardTiling,
  forwardTiling,
  type KvAndGrads,
  type Pass,
  type Runner,
  type Site,
  type Tile,
  type Tiling,
} from "./pass.ts";
import { Plans } from "./plans.ts";
import { Scheduled } from "./scheduled.ts";

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
 * Within another backend, which brings keys in parts, queries travel once for all parts and stay, and so do the sums over
 * them: `ring({ axis: "node", inner: mesh2d({ axis: "gpu" }) })` moves only keys at each step.
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
  const needs = new LayoutCache<Needs>([axis]);
  const plans = new Plans({ channels, computeToTransfer, links });
  return {
    name: "mesh2d",
    axes: [axis],

    check(ctx) {
      checkMesh(ctx, axis, shape);
      inner.check?.(ctx);
    },

    withShape: (other) => mesh2d({ ...options, shape: other }),

    inParts,

    attend(ctx, call, state, keys) {
      using whole = inParts([keys.from]);
      whole.attend(ctx, call, state, keys);
    },

    attendBackward(ctx, call, grads, keys) {
      using whole = inParts([keys.from]);
      whole.attendBackward(ctx, call, grads, keys);
    },
  };

  function inParts(from: readonly Coordinate[]): InParts {
    let forward: Folding<PlacedKv> | undefined;
    let backward: Folding<KvAndGrads> | undefined;
    return {
      attend(ctx, call, state, keys) {
        checkMesh(ctx, axis, shape);
        checkCall(ctx, axis, call, keys);
        checkState(`${label}, rank ${ctx.rank}`, state, call);
        forward ??= folding(forwardTiling(siteOf(ctx, call, keys), call, state));
        forward.add(keys);
      },

      attendBackward(ctx, call, grads, keys) {
        checkMesh(ctx, axis, shape);
        checkCall(ctx, axis, call, keys);
        checkBackward(`${label} backward, rank ${ctx.rank}`, call, grads, keys);
        backward ??= folding(backwardTiling(siteOf(ctx, call, keys), call, grads));
        backward.add({ ...keys, dk: grads.dk, dv: grads.dv });
      },

      [Symbol.dispose]() {
        forward?.[Symbol.dispose]();
        backward?.[Symbol.dispose]();
      },
    };

    function folding<Part extends PlacedKv>(tiling: Tiling<Part>): Folding<Part> {
      return new Folding({ tiling, from, begin });
    }

    function siteOf(ctx: Context, call: Call, { k }: PlacedKv): Site {
      const { size, rank } = ctx.mesh.group(axis);
      const grouped = call.q.shape[1]! / k.shape[1]!;
      const grid = shape ? { rows: shape[0], columns: shape[1] } : bestGrid(size, grouped, from.length);
      const needAt = (place: Coordinate) =>
        needs.of(call, place, () => new Needs(shardsAlong(axis, size, call, place))).of(grid, rank);
      return { ctx, axis, inner, label, grid, needs: from.map(needAt) };
    }
  }

  function begin(pass: Pass, tile: Tile): Runner {
    const planOf = (each: Tile) => plans.planOf(pass, each);
    const chosen =
      form === "auto" ? formOf({ ...sizesOf(pass, tile), plan: planOf(whole(tile)), halfSpeedRows }) : form;
    return chosen === "fused" ? new Fused(pass) : new Scheduled(pass, planOf);
  }
}

/** The tile as if it were the only one. */
function whole(tile: Tile): Tile {
  return { ...tile, first: true, last: true };
}

function sizesOf({ queries, grid }: Pass, { keys }: Tile): Pick<FormOptions, "queries" | "keys"> {
  return { queries: { chunks: grid.columns, rows: queries.rows }, keys: { chunks: grid.rows, rows: keys.rows } };
}
