export { flex, type FlexOptions } from "./flex.ts";
export type { StageCost } from "./stage-time.ts";
export { flexTraffic, type FlexTrafficOptions } from "./traffic.ts";
export type { DispatchBounds } from "./dispatch/bounds.ts";
export type { DispatchCost } from "./dispatch/cost.ts";
export {
  crossDispatch,
  type CrossDispatchOptions,
  dispatch,
  dispatchBounds,
  dispatchCandidates,
  type DispatchOptions,
} from "./dispatch/dispatch.ts";
export { documentZigzag } from "./dispatch/document-zigzag.ts";
export {
  type DispatchEvaluation,
  evaluateDispatch,
  type EvaluateDispatchOptions,
  type RankDispatchLoad,
} from "./dispatch/evaluate.ts";
