export { type LayerConfig, type ModelConfig, parseConfig } from "./config/config.ts";
export type { GenerationConfig } from "./config/generation-config.ts";
export type { RopeConfig } from "./config/rope.ts";
export { BatchScheduler } from "./generate/batch-scheduler.ts";
export type { GenerateOptions } from "./generate/generate.ts";
export type { GeneratedToken } from "./generate/generated-text.ts";
export { type BatchResult, GenerationBatch, type GenerationBatchOptions } from "./generate/generation-batch.ts";
export { GenerationCache, type GenerationCacheOptions, type GenerationSequence } from "./generate/generation-cache.ts";
export type { TokenStream } from "./generate/token-stream.ts";
export { createModel, type CreateModelOptions, loadModel, type LoadModelOptions } from "./load-model.ts";
export type { CausalLM, CausalLMParts, Decoder } from "./model/causal-lm.ts";
export type { DecoderCache, DecoderLayer, ModelForwardOptions, ModelSettings } from "./model/decoder-layer.ts";
export { loadTokenizer } from "./tokenizer/load-tokenizer.ts";
export {
  type ChatMessage,
  type ChatTemplateOptions,
  type DecodeOptions,
  type EncodeOptions,
  Tokenizer,
  type TokenizerFiles,
} from "./tokenizer/tokenizer.ts";
export type { ModelSource, SaveModelOptions } from "./weights/save.ts";
