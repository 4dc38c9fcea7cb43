// Selects the best strategy for a cluster, and verifies, predicts and draws any backend on symbolic ranks. Also
// exports, for comparison, closed forms of the bytes sent and measurements of this machine's peak performance.
export {
  type DispatchCost,
  type DispatchEvaluation,
  dispatchBounds,
  dispatchCandidates,
  documentZigzag,
  evaluateDispatch,
  flexTraffic,
  type FlexTrafficOptions,
  type StageCost,
} from "@mosaic/backend-flex";
export { mesh2dTraffic, type Mesh2DTrafficOptions } from "@mosaic/backend-mesh2d";
export { ringTraffic, type RingTrafficOptions } from "@mosaic/backend-ring";
export { ulyssesTraffic, type UlyssesTrafficOptions } from "@mosaic/backend-ulysses";
export { fmaPeak, readBandwidth } from "@mosaic/kernels-cpu";
export * from "@mosaic/planner";
export * from "@mosaic/strategies/plan";
