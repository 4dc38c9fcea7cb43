// Attention to the chunks that a learned router chose.
export * from "@mosaic/meta-attention";
