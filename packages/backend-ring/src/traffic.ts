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
  /** The ring's inner backend, as given to `ring`. Default: none that communicates. */
  inner: option.backend({ optional: true }),
  /** B · Hkv · D: the numbers that make a key. */
  width: option.integer({ min: 1 }),
  /** B · Hkv · Dv: those that make a value. Default: width. */
  valueWidth: option.integer({ min: 1, optional: true }),
});
/** What `ringTraffic` takes. */
export type RingTrafficOptions = OptionsOf<typeof ringTrafficOptions>;

/**
 * What one rank sends and receives along the ring's axis, in closed form: bytes and messages.
 *
 * Forward, of K and V: a rank receives every foreign chunk that it needs, once. It passes a chunk on if its right
 * neighbour needs it too, and gives its own to the first rank of every run of neighbours that need it.
 * Backward, of K and V the same again, and of dK and dV, in float32, the mirror image of it: what came from the left
 * neighbour came with that one's sums, and the last rank of every run returns them to their owner. A chunk is two messages.
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

// Each of these gives rows of chunks, one per transfer.

/** The foreign chunks that a rank needs. */
function receivedRows({ size, needsKv, keyRows }: DependencyTable, rank: number): number[] {
  return otherRanks(rank, size)
    .filter((source) => needsKv(rank, source))
    .map(keyRows);
}

/** Those of them that its right neighbour needs as well, to whom they are foreign too. */
function forwardedRows({ size, needsKv, keyRows }: DependencyTable, rank: number): number[] {
  const right = modulo(rank + 1, size);
  return otherRanks(rank, size)
    .filter((source) => source !== right && needsKv(rank, source) && needsKv(right, source))
    .map(keyRows);
}

/** Its own chunk, once for every run of neighbours that need it. */
function originatedRows({ size, needsKv, keyRows }: DependencyTable, rank: number): number[] {
  const peers = otherRanks(rank, size);
  return peers
    .filter((peer, i) => needsKv(peer, rank) && !(i > 0 && needsKv(peers[i - 1]!, rank)))
    .map(() => keyRows(rank));
}

/** All other ranks, the right neighbour first. */
function otherRanks(rank: number, size: number): number[] {
  return Array.from({ length: size - 1 }, (_, i) => modulo(rank + 1 + i, size));
}
