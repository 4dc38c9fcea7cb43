// For custom backends: the building blocks of ring, mesh2d, ulysses and flex.
export * from "@mosaic/core/context-parallel";
