// For custom backends: what ring, mesh2d, ulysses and flex are built on.
export * from "@mosaic/core/context-parallel";
