export { checkpoint } from "@mosaic/core";
export {
  DataLoader,
  type DataLoaderOptions,
  type DataLoaderState,
  type PlacementFunction,
  type TokenBatch,
} from "./data/data-loader.ts";
export {
  tokenArrays,
  tokenFile,
  type TokenFileOptions,
  type TokenSource,
  type TokenSpan,
} from "./data/token-source.ts";
export type { CachedAttentionOptions, KvCacheLayer, KvCacheLayerOptions } from "./cache/cache-layer.ts";
export type { CacheSequence } from "./cache/cache-sequence.ts";
export { KvCache, type KvCacheOptions } from "./cache/kv-cache.ts";
export { type ActivationName, GELU, MLP, type MLPOptions, SiLU } from "./layers/mlp.ts";
export { GeGLU, type GeGLUOptions, SwiGLU, type SwiGLUOptions } from "./layers/gated.ts";
export { type Layer, ModuleList, Sequential } from "./layers/containers.ts";
export { Dropout, type ShardingOptions } from "./layers/dropout.ts";
export { Embedding, embedding, type EmbeddingOptions } from "./layers/embedding.ts";
export { LayerNorm, type LayerNormOptions, RMSNorm, type RMSNormOptions } from "./layers/norms.ts";
export {
  type DynamicNtkScalingOptions,
  type LinearScalingOptions,
  type Llama3ScalingOptions,
  type NtkScalingOptions,
  type RopeFrequencies,
  type RopeParameters,
  type RopeScaling,
  ropeScaling,
  type YarnScalingOptions,
} from "./layers/rope-scaling.ts";
export { RotaryEmbedding, type RotaryOptions } from "./layers/rotary.ts";
export {
  addLoRA,
  type AddLoRAOptions,
  LoRA,
  type LoRAOptions,
  loraStateDict,
  markOnlyLoRATrainable,
  mergeLoRA,
} from "./layers/lora.ts";
export { TiedLinear } from "./layers/tied-linear.ts";
export { crossEntropy, type CrossEntropyOptions, crossEntropyTerms } from "./losses/cross-entropy.ts";
export {
  linearCrossEntropy,
  type LinearCrossEntropyOptions,
  linearCrossEntropyTerms,
  type OutputProjection,
} from "./losses/linear-cross-entropy.ts";
export { lossTerms, meanOverMesh } from "./losses/mean-over-mesh.ts";
export { mseLoss, mseLossTerms } from "./losses/mse-loss.ts";
export { clipGradNorm, type ClipGradNormOptions, NonFiniteError } from "./optimizers/gradients.ts";
export { AdamW, type AdamWOptions, ScheduleFreeAdamW, type ScheduleFreeOptions } from "./optimizers/adamw.ts";
export {
  Optimizer,
  type OptimizerDeclaration,
  type OptimizerOptions,
  type OptimizerState,
  type StepOptions,
} from "./optimizers/optimizer.ts";
export type { OptimizerSlot, ParameterOverrides } from "./optimizers/optimizer-slot.ts";
export { SGD, type SGDOptions } from "./optimizers/sgd.ts";
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
export { type FullyShardOptions, fullyShard, summonFullParameters } from "./sharding/fully-shard.ts";
export { readStateDict, type ReadStateDictOptions } from "./sharding/sharded-state.ts";
export type { TensorSource } from "./sharding/tensor-chunks.ts";
export { FileError } from "./safetensors/format.ts";
export { openSafetensors, type SafetensorsReader, type TensorInfo } from "./safetensors/reader.ts";
export { type FileTensor, readSafetensors, type SafetensorsFile } from "./safetensors/read.ts";
export { type TensorMap, writeSafetensors } from "./safetensors/write.ts";
export { fromTorch } from "./state/from-torch.ts";
export type { CheckpointOptions, FoundCheckpoint } from "./state/host-copies.ts";
export { checkSamePath } from "./state/same-path.ts";
export type { TrainingState } from "./state/check-state.ts";
export {
  findCheckpoint,
  loadCheckpoint,
  type LoadedCheckpoint,
  saveCheckpoint,
} from "./state/training-state.ts";
