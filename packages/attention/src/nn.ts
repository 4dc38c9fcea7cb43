// Training: layers, losses, optimizers, checkpoints.
export * from "@mosaic/nn";
