import { formatBytes, formatSeconds, formatPercent } from "@mosaic/planner";
import { formatMesh } from "../mesh-order.ts";
import type { Strategy } from "../strategy.ts";
import type { PlanJob, PlanOptions } from "./job.ts";
import { type Plan, plan, type RankedStrategy } from "./plan.ts";

/** Maximum number of alternatives that are listed. */
const MAX_ALTERNATIVES = 4;

/** Explains what was chosen and why, in one sentence per line. */
function formatExplanation({ best, ranking, job, refused }: Plan): string {
  const otherStrategies = ranking.filter((rankedStrategy) => rankedStrategy !== best);
  const families = new Set([best.family]);
  const addNewFamily = ({ family }: RankedStrategy): boolean => !families.has(family) && families.add(family).size > 0;
  const alternatives = otherStrategies
    .filter((rankedStrategy) => rankedStrategy.fits && addNewFamily(rankedStrategy))
    .slice(0, MAX_ALTERNATIVES);
  const oversizedStrategies = otherStrategies.filter(({ fits }) => !fits);
  const formatBytesSent = createBytesFormatter(job);
  return [
    `auto chose ${formatStrategy(best)}: ${formatCosts(best, formatBytesSent)}, predicted for ${job.profile.name}.`,
    ...alternatives.map(
      (rankedStrategy) =>
        `${formatStrategy(rankedStrategy)}: ${formatComparison(best, rankedStrategy, formatBytesSent)}.`,
    ),
    ...(alternatives.some(({ seconds }) => seconds < best.seconds)
      ? ["Times are compared in steps of 1 %; ties are broken by fewer bytes between nodes, then by lower peak memory."]
      : []),
    ...(oversizedStrategies.length === 0
      ? []
      : [
          `${oversizedStrategies.length} more strategies exceed the memory limit of ${formatBytes(job.memoryLimit)} per rank.`,
        ]),
    ...refused.map(({ name, mesh, error }) => `${name} on ${formatMesh(mesh)} cannot run: ${error.message}`),
    `${ranking.length} strategies were compared.`,
  ].join("\n");
}

type BytesFormatter = (rankedStrategy: RankedStrategy) => string;

/** Creates a formatter of sent bytes. On a single node, it omits bytes between nodes. */
function createBytesFormatter({ nodes }: PlanJob): BytesFormatter {
  return ({ bytesWithinNodes, bytesBetweenNodes }) =>
    nodes === 1
      ? `${formatBytes(bytesWithinNodes)} sent`
      : `${formatBytes(bytesWithinNodes)} sent within nodes and ${formatBytes(bytesBetweenNodes)} between them`;
}

function formatStrategy({ name, mesh }: RankedStrategy): string {
  return `${name} on ${formatMesh(mesh)}`;
}

function formatCosts(rankedStrategy: RankedStrategy, formatBytesSent: BytesFormatter): string {
  const { seconds, exposedSeconds, peakBytes } = rankedStrategy;
  const exposedText = `${formatSeconds(exposedSeconds)} of it exposed communication`;
  return `${formatSeconds(seconds)} per step, ${exposedText}, ${formatBytesSent(rankedStrategy)}, ${formatBytes(peakBytes)} peak memory`;
}

function formatComparison(
  best: RankedStrategy,
  rankedStrategy: RankedStrategy,
  formatBytesSent: BytesFormatter,
): string {
  const relativeExcess = rankedStrategy.seconds / best.seconds - 1;
  const differenceText = `${formatPercent(Math.abs(relativeExcess))} ${relativeExcess < 0 ? "less" : "more"}`;
  return `${formatSeconds(rankedStrategy.seconds)} (${differenceText}), ${formatBytesSent(rankedStrategy)}, ${formatBytes(rankedStrategy.peakBytes)} held`;
}

/** The strategy that the planner chose, and why. */
export interface AutoStrategy extends Strategy {
  /** Text that describes the chosen strategy, and the costs of the next best. */
  readonly explanation: string;
  /** All strategies that were compared, with their numbers. */
  readonly plan: Plan;
}

/**
 * Returns the strategy that is predicted to take the least time, chosen by `plan` for the call that the options
 * describe. It computes other calls just as exactly, but perhaps not in the least time.
 *
 * The plan is made at once: `meshFor` returns the mesh for `init`, and `explanation` gives the reasons. Every rank
 * plans on its own, with the same result if all have equal options. A measured profile must therefore come from one
 * rank.
 *
 * @throws OptionError as `plan` does; on another mesh, when a module is created with it and on every call, before
 * anything is sent.
 *
 * @example
 * ```ts
 * import { auto } from "@mosaic/strategies/plan";
 * const strategy = auto({ tokens: 4096, numHeads: 8, headDim: 64, gpusPerNode: 4, profile: "h100-ib400" });
 * strategy.name; // => "auto"
 * Object.values(strategy.meshFor(4)).reduce((a, b) => a * b); // => 4
 * strategy.explanation.startsWith(`auto chose ${strategy.plan.best.name}`); // => true
 * ```
 */
export function auto(options: PlanOptions): AutoStrategy {
  const planResult = plan(options);
  return { ...planResult.best.strategy, name: "auto", explanation: formatExplanation(planResult), plan: planResult };
}
