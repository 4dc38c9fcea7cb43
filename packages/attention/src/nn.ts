// Training: layers, losses, optimizers and checkpoints. Also exports the layers of core, as PyTorch's `nn` has all
// layers.
export * from "@mosaic/nn";
export {
  checkpoint,
  CrossAxisAttention,
  Linear,
  Module,
  MultiAxisAttention,
  MultiAxisAttention2D,
  SelfAttention,
} from "@mosaic/core";
