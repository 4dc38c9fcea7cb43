export { type Mesh2DOptions, mesh2d } from "./mesh2d.ts";
export { type Mesh2DTrafficOptions, mesh2dTraffic } from "./traffic.ts";
