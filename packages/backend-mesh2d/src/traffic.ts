import { type Coordinate, type DType, dtypeBytes, type Traffic } from "@mosaic/core";
import { checkGrid } from "./check.ts";
import { bestGrid } from "./grid.ts";
import { joinedSide, shardsAlong, type NeedCall, needOf, type Side } from "./need.ts";

export interface Mesh2DTrafficOptions {
  /** Axis and grid, as given to `mesh2d`. */
  readonly axis?: string;
  readonly shape?: readonly [rows: number, columns: number];
  /** Length of every mesh axis. */
  readonly mesh: Coordinate;
  /** The call of the rank in question: its place, the mask, and the layouts of queries and keys. */
  readonly call: NeedCall;
  /** Where its keys come from; `call.at` if absent. A list: the parts in which another backend brings them. */
  readonly from?: Coordinate | readonly Coordinate[];
  /** B, H, Hkv and D. */
  readonly batch: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** What q, k, v and dOut are stored in. */
  readonly dtype: DType;
}

/** Bytes and messages per row of a chunk: what a rank's rows cost on their way out, and their sums on the way back. */
interface Fare {
  readonly out: number;
  readonly outMessages: number;
  readonly back: number;
  readonly backMessages: number;
}

/**
 * What one rank sends and receives along the axis, in closed form: bytes and messages, the same in both forms.
 *
 * A rank's queries go once to every other rank of its row that computes on them, its keys once to every such rank of its
 * column, and sums come back the same way. With c columns, r rows and a full mask, in chunks of queries' size:
 * forward 2(c − 1) + (2/g)(r − 1), backward 3(c − 1) + (4/g)(r − 1), for g = H / Hkv and messages of one width. Beside
 * that lse, and in backward lse and delta, travel with the queries; sums (out, dq, dk, dv) and statistics are float32.
 * Within another backend the keys' share comes anew with every part, the queries' once.
 *
 * Source: Chen, Li et al., "Mesh-Attention", 2025 (arXiv 2512.20968); Elango, "Attention2D", 2025 (arXiv 2503.15758).
 *
 * @throws OptionError if the shape does not fit the mesh.
 *
 * @example
 * ```ts
 * import { contiguous, full, layoutOf } from "@mosaic/core";
 * import { mesh2dTraffic } from "@mosaic/backend-mesh2d";
 * const mesh = { sp: 4 };
 * const tokens = layoutOf({ mesh, axes: ["sp"], placement: contiguous(), length: 400 });
 * const call = { at: { sp: 0 }, mask: full().slices(400, 400), queries: tokens, keys: tokens };
 * const sizes = { batch: 1, heads: 2, kvHeads: 2, headDim: 8, dtype: "float32" } as const;
 * // 100 queries, keys and values of 16 numbers each to one neighbour; out and lse of 100 queries back.
 * mesh2dTraffic({ mesh, shape: [2, 2], call, ...sizes }).forward.bytesSent; // => 26400
 * ```
 */
export function mesh2dTraffic(options: Mesh2DTrafficOptions): {
  readonly forward: Traffic;
  readonly backward: Traffic;
} {
  const { axis = "sp", shape, mesh, call, from = call.at, heads, kvHeads, headDim, dtype } = options;
  const parts = Array.isArray(from) ? (from as readonly Coordinate[]) : [from as Coordinate];
  const grouped = heads / kvHeads;
  const grid = shape ? { rows: shape[0], columns: shape[1] } : bestGrid(mesh[axis]!, grouped, parts.length);
  checkGrid("mesh2dTraffic", grid, mesh[axis]!);
  const needs = parts.map((part) => needOf(grid, part[axis]!, shardsAlong(axis, mesh[axis]!, call, part)));
  const row = options.batch * heads;
  const key = options.batch * kvHeads * headDim;
  const q = row * headDim * dtypeBytes[dtype];
  const kv = 2 * key * dtypeBytes[dtype];
  const sum = row * headDim * dtypeBytes.float32;
  const statistic = row * dtypeBytes.float32;
  const lanes = (queries: Fare, keys: Fare) => {
    if (needs.length === 0) return nothing;
    const { rank } = needs[0]!;
    const along = needs.map((need) => laneOf(need.keys, rank, keys));
    return along.reduce(plus, laneOf(joinedSide(needs.map((need) => need.queries)), rank, queries));
  };
  return {
    forward: lanes(
      { out: q, outMessages: 1, back: sum + statistic, backMessages: 2 },
      { out: kv, outMessages: 2, back: 0, backMessages: 0 },
    ),
    backward: lanes(
      { out: 2 * q + 2 * statistic, outMessages: 4, back: sum, backMessages: 1 },
      { out: kv, outMessages: 2, back: 2 * key * dtypeBytes.float32, backMessages: 2 },
    ),
  };
}

const nothing: Traffic = { bytesSent: 0, bytesReceived: 0, messagesSent: 0 };

/** Along one dimension of the tile. */
function laneOf({ sources, takers, length }: Side, rank: number, fare: Fare): Traffic {
  const foreign = sources.filter((source) => source !== undefined && source !== rank) as number[];
  const taken = takers.filter((taker) => taker !== undefined).length;
  const given = taken * length(rank);
  const gotten = foreign.reduce((total, source) => total + length(source), 0);
  return {
    bytesSent: given * fare.out + gotten * fare.back,
    bytesReceived: gotten * fare.out + given * fare.back,
    messagesSent: taken * fare.outMessages + foreign.length * fare.backMessages,
  };
}

function plus(a: Traffic, b: Traffic): Traffic {
  return {
    bytesSent: a.bytesSent + b.bytesSent,
    bytesReceived: a.bytesReceived + b.bytesReceived,
    messagesSent: a.messagesSent + b.messagesSent,
  };
}
