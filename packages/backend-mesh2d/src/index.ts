export { mesh2d } from "./mesh2d.ts";
export type { Mesh2DOptions } from "./options.ts";
export { type Mesh2DTrafficOptions, mesh2dTraffic } from "./traffic.ts";
