import { composed } from "./composed.ts";
import { hierarchical } from "./hierarchical.ts";

export type { ComposedOptions } from "./composed.ts";
export type { HierarchicalOptions } from "./hierarchical.ts";
export type { LevelStrategy, BackendFactory, Strategy } from "./strategy.ts";
export { composed, hierarchical };

/** `composed` under the name used by Mosaic's users. */
export const ComposedAttention: typeof composed = composed;
/** `hierarchical` under the name used by Mosaic's users. */
export const HierarchicalAttention: typeof hierarchical = hierarchical;
