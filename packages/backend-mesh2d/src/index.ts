export { mesh2d, type Mesh2DOptions } from "./mesh2d.ts";
export { type Mesh2DTrafficOptions, mesh2dTraffic } from "./traffic.ts";
