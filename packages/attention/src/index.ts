// Everything, under one name. What is named here again takes precedence over what the packages call the same.
export * from "@mosaic/backend-mesh2d";
export * from "@mosaic/backend-ring";
export * from "@mosaic/backend-ulysses";
export { type LocalOptions as LocalCollectivesOptions, local as localCollectives } from "@mosaic/collectives-local";
export * from "@mosaic/core";
export { checkpoint, type Shape } from "@mosaic/core";
export * from "@mosaic/kernels-cpu";
export * from "@mosaic/meta-attention";
export * from "@mosaic/nn";
// Under a name of its own, too, as one says `torch.nn`.
export * as nn from "@mosaic/nn";
export * from "@mosaic/planner";
export type { Flow } from "@mosaic/planner";
export * from "@mosaic/strategies";
export { type Detected, detect, type DetectOptions } from "./detect.ts";
export { init, type InitOptions } from "./init.ts";
export type { CollectivesName, DeviceName } from "./parts.ts";
export { world, type WorldOptions } from "./world.ts";
