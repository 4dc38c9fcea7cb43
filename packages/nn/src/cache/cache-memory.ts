import type { Context, ProcessGroup, Tensor } from "@mosaic/core";
import type { CacheBlocks } from "./block-table.ts";

/** The memory and configuration of a cache, which its parts share. */
export interface CacheMemory extends CacheBlocks {
  readonly ctx: Context;
  readonly group: ProcessGroup | undefined;
  /** Index of this rank along the axis. */
  readonly rank: number;
  readonly axis: string | undefined;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly valueHeadDim: number;
  /** [numLayers,Hkv,rows,D] and [numLayers,Hkv,rows,Dv]: this rank's blocks, one after another. */
  readonly k: Tensor;
  readonly v: Tensor;
}
