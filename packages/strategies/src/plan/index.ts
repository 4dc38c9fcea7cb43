// Finds the strategy that takes the least time on a machine, by running every candidate on symbolic ranks.
export type { CandidateJob, CandidateFactory } from "../cli/load.ts";
export { auto, type AutoStrategy } from "./auto.ts";
export { dispatchCost, type FlexCostOptions, stageCost } from "./flex-costs.ts";
export type { CallShape, Candidate, PlanJob, PlanOptions, PlanProgress, ProfileName } from "./job.ts";
export { type Plan, plan, type RankedStrategy } from "./plan.ts";
