export { type RingOptions, ring } from "./ring.ts";
export { type RingTrafficOptions, ringTraffic } from "./traffic.ts";
