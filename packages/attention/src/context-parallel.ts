// For backends of one's own: what ring, mesh2d, ulysses and flex are built on.
export * from "@mosaic/core/context-parallel";
