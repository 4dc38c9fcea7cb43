export type { AttentionMass } from "./attend/mass.ts";
export type { Combine } from "./attend/plan.ts";
export type { BytesMoved, Flow } from "./bytes.ts";
export type { Certificate } from "./certificate/certificate.ts";
export type { Chunk, Chunks } from "./chunks.ts";
export { HierarchicalMetaAttention, type MetaForwardOptions } from "./hierarchical.ts";
export { entropyLoss, loadBalanceLoss, massLoss, type MassLossOptions } from "./losses.ts";
export type { Meta, MetaResult, RouterRows } from "./meta.ts";
export type { Chosen, Reach } from "./route/choose.ts";
export {
  MetaAttention,
  type MetaAttentionOptions,
  type RouteOptions,
  type Routing,
} from "./route/meta-attention.ts";
export { MultiAxisHierarchicalAttention, type MultiAxisHierarchicalAttentionOptions } from "./multi-axis.ts";
export type { HierarchicalMetaAttentionOptions } from "./settings.ts";
export {
  type ChunkSummary,
  ChunkSummaryEncoder,
  type ChunkSummaryEncoderOptions,
  type Glance,
} from "./summary/encoder.ts";
export { denseToSparse } from "./warm-up.ts";
