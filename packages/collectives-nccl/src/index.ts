export { type NcclSystem, ncclSystem } from "./system.ts";
