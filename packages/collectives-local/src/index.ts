export { local, type LocalOptions } from "./local.ts";
export type { WorldOptions } from "@mosaic/core/native";
export { world } from "./world.ts";
