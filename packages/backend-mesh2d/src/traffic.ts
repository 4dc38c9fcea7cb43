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
  /** The grid, as given to `mesh2d`. Default: the one that sends least. */
  shape: mesh2dOptions.fields.shape,
  /** Where its keys come from. A list: the parts in which another backend brings them. Default: call.at. */
  from: option.either(option.meshShape(), option.array(option.meshShape()), { optional: true }),
  /** B, the batch. */
  batch: option.integer({ min: 1 }),
  /** H, the query heads. */
  numHeads: option.integer({ min: 1 }),
  /** Hkv, the KV heads. */
  numKvHeads: option.integer({ min: 1 }),
  /** D, the size of a head. */
  headDim: option.integer({ min: 1 }),
  /** Dv, the size of a head of the values. Default: headDim. */
  valueHeadDim: option.integer({ min: 1, optional: true }),
});
/** What `mesh2dTraffic` takes. */
export type Mesh2DTrafficOptions = OptionsOf<typeof mesh2dTrafficOptions>;

/**
 * What one rank sends and receives along the axis, in closed form: bytes and messages, the same by any schedule.
 *
 * A rank's queries go once to every other rank of its row that computes on them, its keys once to every such rank of its
 * column, and sums come back the same way. With c columns, r rows and a full mask, in chunks of queries' size:
 * forward 2(c − 1) + (2/g)(r − 1), backward 3(c − 1) + (4/g)(r − 1), for g = H / Hkv, Dv = D and messages of one width. Beside
 * that lse, and in backward lse and delta, travel with the queries; sums (out, dq, dk, dv) and statistics are float32.
 * Within another backend the keys' share comes anew with every part, the queries' once.
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
 * // 100 queries, keys and values of 16 numbers each to one neighbour; out and lse of 100 queries back.
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

/** This rank's chunks on their way out along one dimension of the tile, and others' on their way in; bytes not counted. */
function createChunkFlow({ sources, destinations, rows }: TilePeers, rank: number): ChunkFlow {
  const sourceRanks = sources.filter((source) => source !== undefined && source !== rank);
  const destinationRanks = destinations.filter((destination) => destination !== undefined);
  return {
    bytesPerRow: [],
    sent: destinationRanks.map(() => rows(rank)),
    received: sourceRanks.map((source) => rows(source!)),
  };
}
