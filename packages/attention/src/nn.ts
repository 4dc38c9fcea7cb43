// Training: layers, losses, optimizers, checkpoints. The layers of core, too: PyTorch has `nn.Linear` beside `nn.LayerNorm`.
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
