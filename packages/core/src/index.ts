import "./methods.ts";

export { checkContext, checkDevice, checkDType, checkShape, checkTensor } from "./arguments.ts";
export { attention, type AttentionOptions, type AttentionOutput, emptyState } from "./attention/attention.ts";
export {
  type AttentionBackend,
  type AttentionCall,
  blockwise,
  type BlockwiseAttention,
  describeBackend,
  type KvShard,
  local,
  createTile,
} from "./attention/backend.ts";
export { checkFeatures, checkTile } from "./attention/check.ts";
export type * from "./attention/tile.ts";
export { isBackwardRunning } from "./autograd/backward.ts";
export { type ActivationCheckpointOptions, checkpoint } from "./autograd/checkpoint.ts";
export { defineOp, type OpDefinition } from "./autograd/define-op.ts";
export {
  type Edge,
  enableGrad,
  type GradNode,
  isGradEnabled,
  type TensorMetadata,
  noGrad,
  type BackwardDefinition,
} from "./autograd/node.ts";
export { preserveVersion, type SavedValues } from "./autograd/saved-tensors.ts";
export { packBytes, unpackBytes } from "./collectives/byte-words.ts";
export {
  CheckedGroup,
  type CollectiveCall,
  type CollectiveOp,
  collectiveOps,
  reduceOps,
} from "./collectives/checked-group.ts";
export * as functionalCollectives from "./collectives/functional.ts";
export type { RowTransfer } from "./collectives/group-cast.ts";
export { allGatherObject, broadcastObject, type GroupOrContext, runOnAllRanks } from "./collectives/objects.ts";
export type * from "./collectives/process-group.ts";
export { singleRankGroup } from "./collectives/single-rank-group.ts";
export type { Context } from "./context.ts";
export { contextToJson } from "./context-json.ts";
export { type DeviceOrContext, empty, fromArray, full, ones, type TensorOptions, zeros } from "./creation.ts";
export {
  checkAxisNames,
  dataParallelAxes,
  dataParallelAxis,
  dataParallelRank,
  dataParallelSize,
  gradientReduceOp,
  isDataParallelAxis,
} from "./data-parallel.ts";
export * from "./device.ts";
export { environmentFlag } from "./environment-flag.ts";
export * from "./errors.ts";
export { init, initOptions, type InitOptions } from "./init.ts";
export { inspectAsString } from "./inspect.ts";
export { type LaunchEnvironment, launchEnvironment, localRank, localWorldSize } from "./launch-environment.ts";
export { checkJsonValue } from "./json-value.ts";
export {
  compileKernel,
  type Operand,
  getOperands,
  getTensor,
  versionedKernels,
} from "./kernels/operands.ts";
export type * from "./kernels/kernels.ts";
export { kernelEnumerations, kernelFeatures, kernelSchema, kernelStructures } from "./kernels/schema.ts";
export { isVisible, visibleRows, visiblePairs } from "./mask/visibility.ts";
export {
  checkSlice,
  clipKeys,
  clipQueries,
  hasDiagonalEnd,
  hasDiagonalStart,
  type Mask,
  visibleKeyRange,
  type Slice,
  sliceArea,
  type SliceType,
  sliceTypeCodes,
} from "./mask/slice.ts";
export { formatMask } from "./mask/define.ts";
export * as masks from "./mask/index.ts";
export { sliceIntersects, slicesOverlap } from "./mask/overlap.ts";
export { resolveSlices } from "./mask/verify.ts";
export { type Coordinate, coordinateOf, type DeviceMesh, omitAxes } from "./mesh.ts";
export type { AttentionCache, CachedAttentionCall } from "./modules/attention-cache.ts";
export type {
  AttentionForwardOptions,
  AttentionModuleOptions,
  HeadNorm,
  PositionEncoding,
} from "./modules/attention-options.ts";
export {
  CrossAxisAttention,
  type CrossAxisAttentionOptions,
  type CrossAxisForwardOptions,
} from "./modules/cross-axis-attention.ts";
export type { RemovableHandle } from "./modules/hook-list.ts";
export { Linear, type LinearOptions } from "./modules/linear.ts";
export {
  type BufferOptions,
  checkModule,
  type ForwardHook,
  type ForwardPreHook,
  Module,
  type NamedModulesOptions,
} from "./modules/module.ts";
export { MultiAxisAttention, type MultiAxisAttentionOptions, SelfAttention } from "./modules/multi-axis-attention.ts";
export { MultiAxisAttention2D, type MultiAxisAttention2DOptions } from "./modules/multi-axis-attention-2d.ts";
export {
  createParameter,
  type Initializer,
  type ParameterOptions,
  reduceGradients,
  skipInit,
} from "./modules/parameters.ts";
export { ParameterMismatchError } from "./modules/replica-check.ts";
export {
  type HostTensor,
  loadState,
  type LoadOptions,
  type LoadReport,
  type StateDict,
  StateDictError,
} from "./modules/state-dict.ts";
export { concatenate, roll, stack } from "./ops/concatenate.ts";
export { gated } from "./ops/gated.ts";
export { linear } from "./ops/linear.ts";
export { matmul } from "./ops/matmul.ts";
export { layerNorm, type NormOptions, rmsNorm, type RmsNormOptions } from "./ops/norm.ts";
export * from "./ops/pointwise.ts";
export { max, mean, min, type ReduceOptions, sum } from "./ops/reduction.ts";
export { softmax } from "./ops/softmax.ts";
export * as option from "./option.ts";
export type { Option, OptionSettings, PresenceOf } from "./option.ts";
export {
  checkArgument,
  defineOptions,
  type OptionsDeclaration,
  type OptionsOf,
  type ResolvedOptionsOf,
} from "./options.ts";
export { layoutOf, type LayoutOptions } from "./placement/layout.ts";
export * from "./placement/placement.ts";
export { shard, type ShardOptions, sequenceAxes, unshard } from "./placement/shard.ts";
export {
  checkSameSharding,
  checkSharding,
  elementwiseSharding,
  rowSharding,
} from "./placement/sharding.ts";
export { joinSpans, positions, type Span, spansLength } from "./placement/span.ts";
export { resolveShards } from "./placement/verify.ts";
export { offsetSeed, rand, randn, type RandnOptions, type RandOptions } from "./random.ts";
export { keep, scope } from "./scope.ts";
export {
  type Axes,
  contiguousStrides,
  formatShape,
  isContiguous,
  normalizeAxis,
  numel,
  sameShape,
  type Shape,
  type StridedView,
} from "./shape.ts";
export {
  type DType,
  dtypeBytes,
  dtypeCodes,
  FinalizedStorage,
  LOWEST_FLOAT32,
  significandBits,
  Storage,
} from "./storage.ts";
export { type GradientReducer, type Replication, Tensor, type TensorInit, type ViewOptions } from "./tensor.ts";
export type { TensorMethods } from "./methods.ts";
