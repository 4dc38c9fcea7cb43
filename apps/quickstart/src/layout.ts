import { contiguous, type Layout, layoutOf, type Mask, masks, type Placement, zigzag } from "@mosaic/attention";
import type { Arrangement } from "./arrangement.ts";
import type { Settings } from "./settings.ts";

/** Which tokens each rank holds. */
export function layoutFor(settings: Settings, { backend, mesh }: Arrangement): Layout {
  return layoutOf({ mesh, axes: backend.axes, placement: placementFor(settings), length: settings.tokens });
}

/** Under a causal mask late tokens have more work, so each rank gets early and late ones. */
export function placementFor(settings: Settings): Placement {
  return settings.causal ? zigzag() : contiguous();
}

export function maskFor(settings: Settings): Mask {
  return settings.causal ? masks.causal() : masks.full();
}
