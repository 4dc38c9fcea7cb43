export { local, type LocalOptions } from "./local.ts";
export type { WorldOptions } from "@mosaic/runtime";
export { world } from "./world.ts";
