// Which strategy is best on a cluster; proofs, predictions and drawings of any backend on symbolic ranks; and, to compare
// them with, closed forms of what is sent and the peak of this machine.
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
