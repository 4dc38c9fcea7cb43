// Attention to chunks that a learned router selects.
export * from "@mosaic/meta-attention";
