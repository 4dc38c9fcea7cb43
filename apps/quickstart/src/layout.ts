import { causal, contiguous, full, type Layout, layoutOf, type Mask, zigzag } from "@mosaic/attention";
import type { Settings } from "./settings.ts";

/** The mesh axis along which the sequence is cut. */
export const AXIS = "sp";

/** Which tokens each rank holds. Under a causal mask late tokens have more work, so each gets early and late ones. */
export function layoutFor({ tokens, ranks, causal }: Settings): Layout {
  const placement = causal ? zigzag() : contiguous();
  return layoutOf({ mesh: { [AXIS]: ranks }, axes: [AXIS], placement, length: tokens });
}

export function maskFor(settings: Settings): Mask {
  return settings.causal ? causal() : full();
}
