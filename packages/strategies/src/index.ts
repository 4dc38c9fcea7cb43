import { composed } from "./composed.ts";
import { hierarchical } from "./hierarchical.ts";

export type { ComposedOptions } from "./composed.ts";
export type { HierarchicalOptions } from "./hierarchical.ts";
export type { LevelStrategy, BackendFactory, Strategy } from "./strategy.ts";
export { composed, hierarchical };

/** `composed` by the name that Mosaic's users know. */
export const ComposedAttention: typeof composed = composed;
/** `hierarchical` by the name that Mosaic's users know. */
export const HierarchicalAttention: typeof hierarchical = hierarchical;
