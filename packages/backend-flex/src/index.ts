export { flex, type FlexOptions } from "./flex.ts";
export type { StageCost } from "./stage-schedule.ts";
export { flexTraffic, type FlexTrafficOptions } from "./traffic.ts";
