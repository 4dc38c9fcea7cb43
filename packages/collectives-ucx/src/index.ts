export { ucx, type UcxOptions, type UcxWorldOptions, world } from "./ucx.ts";
export { type UcxSystem, ucxSystem } from "./addon.ts";
