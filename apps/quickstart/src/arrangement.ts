import type { AttentionBackend } from "@mosaic/attention";
import type { Coordinate } from "@mosaic/attention/core";

/** A backend, and the mesh of ranks that it needs. */
export interface Arrangement {
  readonly backend: AttentionBackend;
  readonly mesh: Coordinate;
}
