export { checkpoint } from "@mosaic/core";
export { type ActivationName, GELU } from "./layers/activations.ts";
export { type Layer, ModuleList, Sequential } from "./layers/containers.ts";
export { Dropout } from "./layers/dropout.ts";
export { Embedding, embedding, type EmbeddingOptions } from "./layers/embedding.ts";
export { MLP, type MLPOptions } from "./layers/mlp.ts";
export { LayerNorm, type LayerNormOptions, RMSNorm, type RMSNormOptions } from "./layers/norms.ts";
export { RotaryEmbedding, type RotaryOptions } from "./layers/rotary.ts";
export type { WhereOptions } from "./layers/where.ts";
export { crossEntropy, type CrossEntropyOptions, crossEntropyTerms } from "./losses/cross-entropy.ts";
export { lossTerms, meanOverMesh } from "./losses/mean-over-mesh.ts";
export { mseLoss, mseLossTerms } from "./losses/mse-loss.ts";
export { NonFiniteError } from "./optimizers/non-finite.ts";
export { AdamW, type AdamWOptions } from "./optimizers/adamw.ts";
export { clipGradNorm } from "./optimizers/clip.ts";
export {
  Optimizer,
  type OptimizerOptions,
  type OptimizerSlot,
  type OptimizerState,
  type StepOptions,
  type ParameterOverrides,
} from "./optimizers/optimizer.ts";
export { ScheduleFreeAdamW, type ScheduleFreeOptions } from "./optimizers/schedule-free.ts";
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
export { type Savable, writeSafetensors } from "./safetensors/write.ts";
export { fromTorch } from "./state/from-torch.ts";
export { loadCheckpoint, type Resumed, saveCheckpoint, type Training } from "./state/training-state.ts";
