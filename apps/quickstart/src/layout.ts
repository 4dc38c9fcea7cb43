import { causal, contiguous, full, type Layout, layoutOf, type Mask, zigzag } from "@mosaic/attention";
import type { Settings } from "./settings.ts";

/** The mesh axis along which the sequence is cut. */
export const AXIS = "sp";

/** Which tokens each rank holds when the sequence is cut along `axes`. Under a causal mask late tokens have more work, so each gets early and late ones. */
export function layoutFor({ tokens, ranks, causal }: Settings, axes: readonly string[]): Layout {
  const placement = causal ? zigzag() : contiguous();
  return layoutOf({ mesh: { [AXIS]: ranks }, axes, placement, length: tokens });
}

export function maskFor(settings: Settings): Mask {
  return settings.causal ? causal() : full();
}
