// What backends that communicate share: checks of a call, memory for chunks, who needs whose keys, and the bytes that follow.
export * from "./buffers.ts";
export {
  type DependencyAxis,
  type DependencyTable,
  dependencyTable,
  dependencyTableCache,
  LayoutCache,
  modulo,
  type ShardedAttentionCall,
} from "./dependencies.ts";
export * from "./traffic.ts";
export { type ValidationRules, type Validator, validator } from "./validation.ts";
