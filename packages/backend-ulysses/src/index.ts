export { ulyssesTraffic, type UlyssesTrafficOptions } from "./traffic.ts";
export { ulysses, type UlyssesOptions } from "./ulysses.ts";
