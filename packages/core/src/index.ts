import "./methods.ts";

export {
  checkContext,
  checkDType,
  checkNullableTensor,
  checkShape,
  checkTensor,
} from "./arguments.ts";
export { attention, type AttentionOptions, type AttentionOutput, emptyState } from "./attention/attention.ts";
export {
  type AttentionBackend,
  type Call,
  checkBackend,
  describeBackend,
  inParts,
  type InParts,
  type PlacedKv,
  tileOf,
} from "./attention/backend.ts";
export { local } from "./attention/local.ts";
export type * from "./attention/state.ts";
export * from "./attention/tile.ts";
export { checkpoint } from "./autograd/checkpoint.ts";
export { defineOp, type OpDefinition } from "./autograd/define-op.ts";
export { type Edge, enableGrad, type GradNode, isRecording, type Made, noGrad, type Recipe } from "./autograd/node.ts";
export { preserveVersion, type Saved } from "./autograd/saved-tensors.ts";
export {
  CheckedGroup,
  type CollectiveCall,
  type CollectiveOp,
  collectiveOps,
  reduceOps,
} from "./collectives/checked-group.ts";
export type * from "./collectives/process-group.ts";
export { singleRankGroup } from "./collectives/single-rank-group.ts";
export type { Context } from "./context.ts";
export {
  empty,
  fromArray,
  full,
  type On,
  ones,
  rand,
  randn,
  type RandnOptions,
  type RandOptions,
  zeros,
} from "./creation.ts";
export type * from "./device.ts";
export { type DType, dtypeBytes, dtypeCodes } from "./dtype.ts";
export * from "./errors.ts";
export { init, initOptions, type InitOptions } from "./init.ts";
export { compileKernel } from "./kernels/compile.ts";
export { checkFeatures } from "./kernels/features.ts";
export type * from "./kernels/fields.ts";
export type * from "./kernels/kernels.ts";
export { type Operand, operandsOf, tensorOf } from "./kernels/operands.ts";
export { versionedKernels } from "./kernels/versions.ts";
export { kernelEnumerations, kernelFeatures, kernelSchema, kernelStructures } from "./kernels/schema.ts";
export { rowsWithin, visiblePairs } from "./mask/area.ts";
export * from "./mask/clip.ts";
export * as masks from "./mask/masks.ts";
export { findOverlap, sliceMeets, slicesOverlap } from "./mask/overlap.ts";
export { type Mask, type Slice, type SliceType, slantsLeft, slantsRight, sliceTypeCodes } from "./mask/slice.ts";
export { resolveSlices } from "./mask/verify.ts";
export { isVisible } from "./mask/visible.ts";
export { type Coordinate, coordinateOf, createMesh, type DeviceMesh, omitAxes } from "./mesh.ts";
export type { AttentionForwardOptions, AttentionModuleOptions, PositionEncoding } from "./modules/attention-options.ts";
export {
  CrossAxisAttention,
  type CrossAxisAttentionOptions,
  type CrossForwardOptions,
} from "./modules/cross-axis-attention.ts";
export { Linear, type LinearOptions } from "./modules/linear.ts";
export { checkModule, Module } from "./modules/module.ts";
export { MultiAxisAttention, type MultiAxisAttentionOptions } from "./modules/multi-axis-attention.ts";
export { MultiAxisAttention2D, type MultiAxisAttention2DOptions } from "./modules/multi-axis-attention-2d.ts";
export { createParameter, type Initial, type ParameterOptions } from "./modules/parameter.ts";
export { reduceGradients } from "./modules/reduce-gradients.ts";
export { SelfAttention } from "./modules/self-attention.ts";
export {
  type HostTensor,
  loadState,
  type LoadOptions,
  type LoadReport,
  type StateDict,
  StateError,
} from "./modules/state-dict.ts";
export * from "./ops/arithmetic.ts";
export { concatenate } from "./ops/concatenate.ts";
export { linear } from "./ops/linear.ts";
export { matmul } from "./ops/matmul.ts";
export { layerNorm, type NormOptions, rmsNorm } from "./ops/norm.ts";
export * from "./ops/pointwise.ts";
export { type Axes, max, mean, type ReduceOptions, sum } from "./ops/reduction.ts";
export { softmax } from "./ops/softmax.ts";
export * as option from "./option.ts";
export type { Option, OptionSettings, PresenceOf } from "./option.ts";
export {
  checkArgument,
  checkOptionNames,
  defineOptions,
  type OptionsDeclaration,
  type OptionsOf,
  type ResolvedOptionsOf,
} from "./options.ts";
export type { Layout } from "./placement/layout.ts";
export { layoutOf, type LayoutOptions } from "./placement/layout-of.ts";
export * from "./placement/placement.ts";
export { shard, type ShardOptions, sequenceAxes, unshard } from "./placement/shard.ts";
export { joinSpans, positions, type Span, spansLength } from "./placement/span.ts";
export { resolveShards } from "./placement/verify.ts";
export { keep, scope } from "./scope.ts";
export * from "./shape.ts";
export { leakedTensors, Storage } from "./storage.ts";
export { Tensor, type TensorParts, type ViewParts } from "./tensor.ts";
export type { TensorMethods } from "./methods.ts";
export type { TraceEvent } from "./trace.ts";
