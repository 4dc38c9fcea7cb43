export { local, type LocalOptions, world } from "./local.ts";
export type { WorldOptions } from "@mosaic/runtime";
