export { checkpoint } from "@mosaic/core";
export { type ActivationName, GELU, MLP, type MLPOptions } from "./layers/mlp.ts";
export { type Layer, ModuleList, Sequential } from "./layers/containers.ts";
export { Dropout, type ShardingOptions } from "./layers/dropout.ts";
export { Embedding, embedding, type EmbeddingOptions } from "./layers/embedding.ts";
export { LayerNorm, type LayerNormOptions, RMSNorm, type RMSNormOptions } from "./layers/norms.ts";
export { RotaryEmbedding, type RotaryOptions } from "./layers/rotary.ts";
export { crossEntropy, type CrossEntropyOptions, crossEntropyTerms } from "./losses/cross-entropy.ts";
export { lossTerms, meanOverMesh } from "./losses/mean-over-mesh.ts";
export { mseLoss, mseLossTerms } from "./losses/mse-loss.ts";
export { clipGradNorm, NonFiniteError } from "./optimizers/gradients.ts";
export { AdamW, type AdamWOptions, ScheduleFreeAdamW, type ScheduleFreeOptions } from "./optimizers/adamw.ts";
export {
  Optimizer,
  type OptimizerOptions,
  type OptimizerSlot,
  type OptimizerState,
  type StepOptions,
  type ParameterOverrides,
} from "./optimizers/optimizer.ts";
export {
  constant,
  cosine,
  type DecayOptions,
  inverseSquareRoot,
  linearDecay,
  linearWarmup,
  multiStep,
  type Schedule,
} from "./optimizers/schedules.ts";
export { FileError } from "./safetensors/format.ts";
export { type FileTensor, readSafetensors, type SafetensorsFile } from "./safetensors/read.ts";
export { type TensorMap, writeSafetensors } from "./safetensors/write.ts";
export { fromTorch } from "./state/from-torch.ts";
export type { CheckpointOptions, FoundCheckpoint } from "./state/host-copies.ts";
export {
  findCheckpoint,
  loadCheckpoint,
  type LoadedCheckpoint,
  saveCheckpoint,
  type TrainingState,
} from "./state/training-state.ts";
