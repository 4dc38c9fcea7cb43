export {
  checkRepresentatives,
  type RecordRepresentativesOptions,
  recordRepresentatives,
} from "./symmetry/record-representatives.ts";
export type { RankDigit, Translations } from "./symmetry/translations.ts";
export { type TrafficCount, count, type TrafficTotals, type RankTraffic } from "./count.ts";
export { formatBytes, formatSeconds, formatPercent } from "./draw/axis.ts";
export { countHostTraffic, type HostTraffic } from "./host-traffic.ts";
export type { DrawDispatchOptions } from "./draw/dispatch-options.ts";
export { drawDispatch } from "./draw/dispatch-svg.ts";
export { drawMask, type DrawMaskOptions } from "./draw/mask-svg.ts";
export { perfettoTrace } from "./draw/perfetto.ts";
export { tileMapSvg, type TileMapSvgOptions } from "./draw/tile-map-svg.ts";
export { type Timelines, timelineSvg, type TimelineSvgOptions } from "./draw/timeline-svg.ts";
export { type TimeBreakdown, timeBreakdown } from "./draw/time-breakdown.ts";
export type { Violation } from "./prove/context.ts";
export { type Proof, prove, type ProveOptions } from "./prove/prove.ts";
export {
  type AttentionRecord,
  type TensorViews,
  maxRecordedRanks,
  record,
  type RecordedRank,
  type RecordOptions,
} from "./record.ts";
export type { SymbolicContext } from "./symbolic/context.ts";
export type { SymbolicDevice } from "./symbolic/device.ts";
export type { GroupInfo, SymbolicGroup } from "./symbolic/group.ts";
export type { Box, StridedLayout, View } from "./symbolic/strided-layout.ts";
export type { InternPool } from "./symbolic/intern-pool.ts";
export type { RankRecord, SymbolicStorage } from "./symbolic/rank-record.ts";
export { type TapeEvent, type TapeOp, tapeOps, type TapeReader, type Tape } from "./symbolic/tape.ts";
export { maxRanks, type SymbolicWorld, symbolicWorld, type SymbolicWorldOptions } from "./symbolic/world.ts";
export { calibrate, type CalibrateOptions } from "./time/calibrate.ts";
export { clockOffset, type ClockOffset, type ClockOffsetOptions } from "./time/clock-offset.ts";
export { countLinks, type LinkTraffic, predict, type Prediction } from "./time/predict.ts";
export {
  type AttentionSpeed,
  type KernelSpeeds,
  type Link,
  type LinkClass,
  linkClass,
  linkClasses,
  parseProfile,
  type Profile,
  type SharedCores,
  type Waves,
} from "./time/profile.ts";
export { profiles } from "./time/profiles.ts";
export { type ContextTrace, traceContext, type TraceContextOptions } from "./trace-context.ts";
export { viewerHtml, type ViewerHtmlOptions, viewerTemplate } from "./viewer-html.ts";
export { type SimulatedRank, simulate, type SimulateOptions, type Simulation } from "./time/simulate.ts";
export { type Estimate, estimate } from "./time/estimate.ts";
export {
  type MemorySample,
  type TimelineEvent,
  type RankTimeline,
  type RankTrace,
  type Timeline,
  timelineOf,
} from "./time/timeline.ts";
