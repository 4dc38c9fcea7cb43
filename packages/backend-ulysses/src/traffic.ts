import { defineOptions, dtypeBytes, local, option, type OptionsOf } from "@mosaic/core";
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
import { type ShardSizes, computeShardSizes } from "./head-exchange.ts";

export const ulyssesTrafficOptions = defineOptions("ulyssesTraffic", {
  ...trafficOptions.fields,
  /** The inner backend, as passed to `ulysses`. Default: none that communicates. */
  inner: option.backend({ optional: true }),
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
/** Options of `ulyssesTraffic`. */
export type UlyssesTrafficOptions = OptionsOf<typeof ulyssesTrafficOptions>;

/**
 * Computes, in closed form, the bytes and messages that one rank sends and receives along the axis, without those of
 * `inner`.
 *
 * A rank that has h of the H query heads, g KV heads, S of the n queries and T of the m keys sends
 *
 * - forward: S·(H − h) rows of q and T·(Σ of g over the other ranks) rows of k and of v; then (n − S)·h rows of float32
 *   out and lse;
 * - backward: as many rows of q, dOut and float32 lse and delta, and the same rows of k and v; then, in float32, (n −
 *   S)·h rows of dq and (m − T)·g rows of dk and of dv.
 *
 * It receives the corresponding rows of the other ranks. If no query attends to any key, nothing is sent.
 *
 * @example
 * ```ts
 * import { contiguous, layoutOf, masks } from "@mosaic/core";
 * import { ulyssesTraffic } from "@mosaic/backend-ulysses";
 * const mesh = { sp: 4 };
 * const tokens = layoutOf({ mesh, axes: ["sp"], placement: contiguous(), length: 400 });
 * const call = { at: { sp: 3 }, mask: masks.full().slices(400, 400), queries: tokens, keys: tokens };
 * const sizes = { batch: 1, numHeads: 8, numKvHeads: 8, headDim: 64, dtype: "bfloat16" } as const;
 * // Three quarters of q, k and v leave as bfloat16, three quarters of out return as float32, with lse.
 * ulyssesTraffic({ mesh, call, ...sizes }).forward.bytesSent; // => 386400
 * ```
 */
export function ulyssesTraffic(options: UlyssesTrafficOptions): CallTraffic {
  const settings = parseTrafficOptions(ulyssesTrafficOptions, options);
  const { axis, inner = local(), mesh, call, from = call.at, batch, headDim, dtype } = settings;
  const { valueHeadDim = headDim } = settings;
  const size = axisLength("ulyssesTraffic", mesh, { axis, from });
  const dependencies = dependencyTable({ axis, size, inner }, call, from);
  if (dependencies.isEmpty) return { forward: totalTraffic([]), backward: totalTraffic([]) };
  const shardSizes = computeShardSizes(dependencies, settings);
  const rank = call.at[axis]!;
  const [bytesPerRow, valueBytesPerRow] = [
    batch * headDim * dtypeBytes[dtype],
    batch * valueHeadDim * dtypeBytes[dtype],
  ];
  const [sumBytesPerRow, valueSumBytesPerRow] = [
    batch * headDim * dtypeBytes.float32,
    batch * valueHeadDim * dtypeBytes.float32,
  ];
  const statisticBytesPerRow = batch * dtypeBytes.float32;
  const createQueryFlow = (...bytes: number[]) => createHeadFlow(shardSizes.queries, rank, bytes);
  const createKeyFlow = (...bytes: number[]) => createHeadFlow(shardSizes.keys, rank, bytes);
  return {
    forward: totalTraffic([
      createQueryFlow(bytesPerRow),
      createKeyFlow(bytesPerRow, valueBytesPerRow),
      reverseFlow(createQueryFlow(), [valueSumBytesPerRow, statisticBytesPerRow]),
    ]),
    backward: totalTraffic([
      createQueryFlow(bytesPerRow, valueBytesPerRow, statisticBytesPerRow, statisticBytesPerRow),
      createKeyFlow(bytesPerRow, valueBytesPerRow),
      reverseFlow(createQueryFlow(), [sumBytesPerRow]),
      reverseFlow(createKeyFlow(), [sumBytesPerRow, valueSumBytesPerRow]),
    ]),
  };
}

/** Returns the exchange of rows for heads, for tensors with the given numbers of bytes per row and head. */
function createHeadFlow({ rows, heads }: ShardSizes, rank: number, bytesPerRow: readonly number[]): ChunkFlow {
  const peers = rows.map((_, rankIndex) => rankIndex).filter((other) => other !== rank);
  return {
    bytesPerRow,
    sent: peers.map((peer) => rows[rank]! * heads[peer]!.count),
    received: peers.map((peer) => rows[peer]! * heads[rank]!.count),
  };
}
