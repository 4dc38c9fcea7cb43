import { composed } from "./composed.ts";
import { hierarchical } from "./hierarchical.ts";

export { auto, type AutoStrategy } from "./auto.ts";
export type { CandidateJob, MakeCandidate } from "./cli/load.ts";
export type { ComposedOptions } from "./composed.ts";
export type { HierarchicalOptions } from "./hierarchical.ts";
export type { LevelStrategy, MakeLevel } from "./levels.ts";
export type { Candidate, PlanJob, PlanOptions, ProfileName, PlanProgress, CallShape } from "./plan/job.ts";
export { type Plan, type Planned, plan } from "./plan/plan.ts";
export type { Strategy } from "./strategy.ts";
export { composed, hierarchical };

/** `composed` by the name that Mosaic's users know. */
export const ComposedAttention: typeof composed = composed;
/** `hierarchical` by the name that Mosaic's users know. */
export const HierarchicalAttention: typeof hierarchical = hierarchical;
