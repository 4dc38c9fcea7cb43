// For backends of one's own: what ring, mesh2d and ulysses are built on.
export * from "@mosaic/core/context-parallel";
