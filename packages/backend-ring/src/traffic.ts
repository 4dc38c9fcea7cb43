import { defineOptions, dtypeBytes, local, option, type OptionsOf } from "@mosaic/core";
import {
  type CallTraffic,
  type ChunkFlow,
  type DependencyTable,
  dependencyTable,
  modulo,
  axisLength,
  parseTrafficOptions,
  totalTraffic,
  trafficOptions,
} from "@mosaic/core/context-parallel";

export const ringTrafficOptions = defineOptions("ringTraffic", {
  ...trafficOptions.fields,
  /** The inner backend, as passed to `ring`. Default: none that communicates. */
  inner: option.backend({ optional: true }),
  /** B · Hkv · D: the number of elements of a key. */
  width: option.integer({ min: 1 }),
  /** B · Hkv · Dv: the number of elements of a value. Default: width. */
  valueWidth: option.integer({ min: 1, optional: true }),
});
/** Options of `ringTraffic`. */
export type RingTrafficOptions = OptionsOf<typeof ringTrafficOptions>;

/**
 * Computes, in closed form, the bytes and messages that one rank sends and receives along the ring's axis.
 *
 * Forward: a rank receives K and V of every chunk of another rank that it needs, once. It forwards a chunk if its right
 * neighbor also needs it, and sends its own chunk to the first rank of every run of adjacent ranks that need it.
 * Backward: the same transfers of K and V, and float32 dK and dV in proportion: a rank sends sums for every chunk that
 * it receives, to its right neighbor or, at the end of a run, to the owner of the chunk. A chunk is two messages.
 *
 * @example
 * ```ts
 * import { contiguous, layoutOf, masks } from "@mosaic/core";
 * import { ringTraffic } from "@mosaic/backend-ring";
 * const mesh = { sp: 4 };
 * const tokens = layoutOf({ mesh, axes: ["sp"], placement: contiguous(), length: 400 });
 * const call = { at: { sp: 3 }, mask: masks.causal().slices(400, 400), queries: tokens, keys: tokens };
 * // The last rank sees all four chunks of 100 keys, and no rank needs its own.
 * ringTraffic({ mesh, call, width: 64, dtype: "float32" }).forward.bytesReceived; // => 153600
 * ringTraffic({ mesh, call, width: 64, dtype: "float32" }).forward.bytesSent; // => 0
 * ```
 */
export function ringTraffic(options: RingTrafficOptions): CallTraffic {
  const {
    axis,
    inner = local(),
    mesh,
    call,
    from = call.at,
    width,
    valueWidth = width,
    dtype,
  } = parseTrafficOptions(ringTrafficOptions, options);
  const size = axisLength("ringTraffic", mesh, { axis, from });
  const dependencies = dependencyTable({ axis, size, inner }, call, from);
  const rank = from[axis]!;
  const receivedRowCounts = receivedRows(dependencies, rank);
  const ownSentRows = originatedRows(dependencies, rank);
  const kvBytesPerRow = [width * dtypeBytes[dtype], valueWidth * dtypeBytes[dtype]];
  const sumBytesPerRow = [width * dtypeBytes.float32, valueWidth * dtypeBytes.float32];
  const left = modulo(rank - 1, dependencies.size);
  const forward: ChunkFlow = {
    bytesPerRow: kvBytesPerRow,
    sent: [...forwardedRows(dependencies, rank), ...ownSentRows],
    received: receivedRowCounts,
  };
  const gradients = {
    bytesPerRow: sumBytesPerRow,
    sent: receivedRowCounts,
    received: [...forwardedRows(dependencies, left), ...ownSentRows],
  };
  return { forward: totalTraffic([forward]), backward: totalTraffic([forward, gradients]) };
}

// Each of these functions returns the row counts of chunks, one per transfer.

/** Returns the rows of each chunk of another rank that `rank` needs. */
function receivedRows({ size, needsKv, keyRows }: DependencyTable, rank: number): number[] {
  return otherRanks(rank, size)
    .filter((source) => needsKv(rank, source))
    .map(keyRows);
}

/** Returns the rows of each received chunk that the right neighbor also needs and does not own. */
function forwardedRows({ size, needsKv, keyRows }: DependencyTable, rank: number): number[] {
  const right = modulo(rank + 1, size);
  return otherRanks(rank, size)
    .filter((source) => source !== right && needsKv(rank, source) && needsKv(right, source))
    .map(keyRows);
}

/** Returns the rows of the rank's own chunk, once for every run of adjacent ranks that need it. */
function originatedRows({ size, needsKv, keyRows }: DependencyTable, rank: number): number[] {
  const peers = otherRanks(rank, size);
  return peers
    .filter((peer, i) => needsKv(peer, rank) && !(i > 0 && needsKv(peers[i - 1]!, rank)))
    .map(() => keyRows(rank));
}

/** Returns all other ranks in ring order, starting with the right neighbor. */
function otherRanks(rank: number, size: number): number[] {
  return Array.from({ length: size - 1 }, (_, i) => modulo(rank + 1 + i, size));
}
