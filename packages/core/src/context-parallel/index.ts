// What backends that communicate share: checks of a call, memory for chunks, who needs whose keys, and the bytes that follow.
export { formatShards, formatSlices, hashNumbers } from "../attention/format.ts";
export * from "./buffers.ts";
export {
  type DependencyAxis,
  type DependencyTable,
  dependencyTable,
  dependencyTables,
  LayoutCache,
  modulo,
  type PlacedCall,
} from "./dependencies.ts";
export * from "./traffic.ts";
export { type ValidationRules, type Validator, validator } from "./validation.ts";
