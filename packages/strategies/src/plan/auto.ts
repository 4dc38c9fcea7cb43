import { explain } from "./explain.ts";
import type { PlanOptions } from "./job.ts";
import { type Plan, plan } from "./plan.ts";
import type { Strategy } from "../strategy.ts";

/** The strategy that the planner chose, and why. */
export interface AutoStrategy extends Strategy {
  /** What was chosen, and what the next best would take, in words. */
  readonly why: string;
  /** Everything that was compared, with its numbers. */
  readonly plan: Plan;
}

/**
 * The strategy that is predicted to take the least time, chosen by `plan` for the call that the options describe. Any other
 * call is computed too, and just as exactly; only its time may not be the least.
 *
 * Plans at once, when it is made: its `meshFor` gives the mesh for `init`, and `why` the reasons. Every rank plans on its
 * own and comes to the same, as long as all are given equal options; a profile that was measured must come from one rank.
 *
 * @throws OptionError as `plan`; on another mesh, when a module is made with it and at every call, before anything is sent.
 *
 * @example
 * ```ts
 * import { auto } from "@mosaic/strategies/plan";
 * const strategy = auto({ tokens: 4096, numHeads: 8, headDim: 64, gpusPerNode: 4, profile: "h100-ib400" });
 * strategy.name; // => "auto"
 * Object.values(strategy.meshFor(4)).reduce((a, b) => a * b); // => 4
 * strategy.why.startsWith(`auto chose ${strategy.plan.best.name}`); // => true
 * ```
 */
export function auto(options: PlanOptions): AutoStrategy {
  const found = plan(options);
  return { ...found.best.strategy, name: "auto", why: explain(found), plan: found };
}
