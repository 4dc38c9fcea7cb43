export type { AttentionMass } from "./attend/routed-attention.ts";
export type { BytesMoved, TransferBytes } from "./bytes.ts";
export type { Certificate } from "./certificate.ts";
export type { Chunk, Chunks } from "./chunks.ts";
export { HierarchicalMetaAttention, type MetaForwardOptions } from "./hierarchical.ts";
export { entropyLoss, loadBalanceLoss, massLoss, type MassLossOptions } from "./losses.ts";
export type { Meta, MetaResult, RouterOutput } from "./meta.ts";
export { type ChosenChunks, type ChunkVisibility, denseToSparse } from "./route/choose.ts";
export {
  MetaAttention,
  type MetaAttentionOptions,
  type RouteOptions,
  type Routing,
} from "./route/meta-attention.ts";
export { MultiAxisHierarchicalAttention, type MultiAxisHierarchicalAttentionOptions } from "./multi-axis.ts";
export type { Combine, HierarchicalMetaAttentionOptions } from "./options.ts";
export {
  type ChunkSummary,
  ChunkSummaryEncoder,
  type ChunkSummaryEncoderOptions,
  type PooledChunk,
} from "./encoder.ts";
