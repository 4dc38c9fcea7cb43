import { type Coordinate, defineOptions, type DType, dtypeBytes, option, type OptionsOf } from "@mosaic/core";
import {
  type CallTraffic,
  type ChunkFlow,
  dependencyTable,
  reverseFlow,
  axisLength,
  parseTrafficOptions,
  totalTraffic,
  trafficOptions,
} from "@mosaic/core/context-parallel";
import { checkGrid, mesh2dOptions } from "./mesh2d.ts";
import { bestGrid, unionOfPeers, createTile, type TilePeers } from "./tile.ts";

export const mesh2dTrafficOptions = defineOptions("mesh2dTraffic", {
  ...trafficOptions.fields,
  /** The grid, as passed to `mesh2d`. Default: the grid that sends least. */
  shape: mesh2dOptions.fields.shape,
  /**
   * The coordinate of the keys, or a list of coordinates if an outer backend provides them in parts. Default: call.at.
   */
  from: option.either(option.meshShape(), option.array(option.meshShape()), { optional: true }),
  /** B, the batch. */
  batch: option.integer({ min: 1 }),
  /** H, the query heads. */
  numHeads: option.integer({ min: 1 }),
  /** Hkv, the KV heads. */
  numKvHeads: option.integer({ min: 1 }),
  /** D, the head dimension. */
  headDim: option.integer({ min: 1 }),
  /** Dv, the head dimension of values. Default: headDim. */
  valueHeadDim: option.integer({ min: 1, optional: true }),
});
/** Options of `mesh2dTraffic`. */
export type Mesh2DTrafficOptions = OptionsOf<typeof mesh2dTrafficOptions>;

/**
 * Computes, in closed form, the bytes and messages that one rank sends and receives along the axis. They are the same
 * for every schedule.
 *
 * A rank sends its queries once to every other rank of its row that computes on them, and its keys once to every such
 * rank of its column. Sums are returned in the opposite direction. With c columns, r rows and a full mask, the volume
 * in chunks of queries is 2(c − 1) + (2/g)(r − 1) in forward and 3(c − 1) + (4/g)(r − 1) in backward, for g = H / Hkv,
 * Dv = D and equal element sizes. In addition, lse is returned with out in forward, and lse and delta are sent with the
 * queries in backward. Sums (out, dq, dk, dv) and statistics are float32. As an inner backend, the terms of keys count
 * once per part, those of queries once.
 *
 * Source: Chen, Li et al., "Mesh-Attention", 2025 (arXiv 2512.20968); Elango, "Attention2D", 2025 (arXiv 2503.15758).
 *
 * @throws OptionError if the shape does not fit the mesh.
 *
 * @example
 * ```ts
 * import { contiguous, layoutOf, masks } from "@mosaic/core";
 * import { mesh2dTraffic } from "@mosaic/backend-mesh2d";
 * const mesh = { sp: 4 };
 * const tokens = layoutOf({ mesh, axes: ["sp"], placement: contiguous(), length: 400 });
 * const call = { at: { sp: 0 }, mask: masks.full().slices(400, 400), queries: tokens, keys: tokens };
 * const sizes = { batch: 1, numHeads: 2, numKvHeads: 2, headDim: 8, dtype: "float32" } as const;
 * // 100 queries, keys and values of 16 numbers each to one neighbor; out and lse of 100 queries back.
 * mesh2dTraffic({ mesh, shape: [2, 2], call, ...sizes }).forward.bytesSent; // => 26400
 * ```
 */
export function mesh2dTraffic(options: Mesh2DTrafficOptions): CallTraffic {
  const {
    axis,
    shape,
    mesh,
    call,
    from = call.at,
    batch,
    ...sizes
  } = parseTrafficOptions(mesh2dTrafficOptions, options);
  const { numHeads, numKvHeads, headDim, valueHeadDim = headDim, dtype } = sizes;
  const keyCoordinates = Array.isArray(from) ? (from as readonly Coordinate[]) : [from as Coordinate];
  if (keyCoordinates.length === 0) return { forward: totalTraffic([]), backward: totalTraffic([]) };
  const [size = 0] = keyCoordinates.map((coordinate) => axisLength("mesh2dTraffic", mesh, { axis, from: coordinate }));
  const grid = shape
    ? { rows: shape[0], columns: shape[1] }
    : bestGrid(size, numHeads / numKvHeads, keyCoordinates.length);
  checkGrid("mesh2dTraffic", grid, size);
  const tiles = keyCoordinates.map((coordinate) =>
    createTile(grid, coordinate[axis]!, dependencyTable({ axis, size }, call, coordinate)),
  );
  const { rank } = tiles[0]!;
  const queryFlow = createChunkFlow(unionOfPeers(tiles.map(({ queries }) => queries)), rank);
  const keyFlows = tiles.map(({ keys }) => createChunkFlow(keys, rank));
  const countBytes = (heads: number, width: number, storageDtype: DType): number =>
    batch * heads * width * dtypeBytes[storageDtype];
  const [queryBytesPerRow, valueBytesPerRow] = [
    countBytes(numHeads, headDim, dtype),
    countBytes(numHeads, valueHeadDim, dtype),
  ];
  const [dqBytesPerRow, outBytesPerRow] = [
    countBytes(numHeads, headDim, "float32"),
    countBytes(numHeads, valueHeadDim, "float32"),
  ];
  const statisticBytesPerRow = countBytes(numHeads, 1, "float32");
  const keyBytesPerRow = [headDim, valueHeadDim].map((width) => countBytes(numKvHeads, width, dtype));
  const keySumBytesPerRow = [headDim, valueHeadDim].map((width) => countBytes(numKvHeads, width, "float32"));
  const keyValueFlows = keyFlows.map((kv) => ({ ...kv, bytesPerRow: keyBytesPerRow }));
  return {
    forward: totalTraffic([
      { ...queryFlow, bytesPerRow: [queryBytesPerRow] },
      reverseFlow(queryFlow, [outBytesPerRow, statisticBytesPerRow]),
      ...keyValueFlows,
    ]),
    backward: totalTraffic([
      { ...queryFlow, bytesPerRow: [queryBytesPerRow, valueBytesPerRow, statisticBytesPerRow, statisticBytesPerRow] },
      reverseFlow(queryFlow, [dqBytesPerRow]),
      ...keyValueFlows,
      ...keyFlows.map((kv) => reverseFlow(kv, keySumBytesPerRow)),
    ]),
  };
}

/**
 * Returns the chunks that this rank sends and receives along one dimension of the tile, without their bytes per row.
 */
function createChunkFlow({ sources, destinations, rows }: TilePeers, rank: number): ChunkFlow {
  const sourceRanks = sources.filter((source) => source !== undefined && source !== rank);
  const destinationRanks = destinations.filter((destination) => destination !== undefined);
  return {
    bytesPerRow: [],
    sent: destinationRanks.map(() => rows(rank)),
    received: sourceRanks.map((source) => rows(source!)),
  };
}
