// Utilities of backends that communicate: validation of calls, memory for chunks, dependencies between ranks, and
// traffic.
export { formatShards, formatSlices, hashNumbers } from "../attention/format.ts";
export { groupCastMessageRows, sharedHosts } from "../collectives/cast-route.ts";
export * from "./buffers.ts";
export {
  type DependencyAxis,
  type DependencyTable,
  dependencyTable,
  dependencyTableCache,
  LayoutCache,
  modulo,
  type ShardedAttentionCall,
} from "./dependencies.ts";
// Functions that do not check their arguments, because callers have checked them and call these functions for every
// tile of every rank, or once per call of attention.
export { mergeSinksUnchecked } from "../attention/sinks.ts";
export { batchMaskOptions, resolveBatchMaskUnchecked, type ResolvedBatchMask, unionSlices } from "../mask/samples.ts";
export { isVisibleUnchecked, visibleRowsUnchecked, visiblePairsUnchecked } from "../mask/visibility.ts";
export { spansOfRowsUnchecked } from "../placement/span.ts";
export * from "./traffic.ts";
export { type ValidationRules, type Validator, validator } from "./validation.ts";
