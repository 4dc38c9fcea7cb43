import type { AttentionBackend, Coordinate } from "@mosaic/attention";

/** A backend, and the mesh of ranks that it wants. */
export interface Arrangement {
  readonly backend: AttentionBackend;
  readonly mesh: Coordinate;
}
