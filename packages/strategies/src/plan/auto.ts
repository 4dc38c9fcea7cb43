import { formatBytes, formatSeconds, formatPercent } from "@mosaic/planner";
import { formatMesh } from "../mesh-order.ts";
import type { Strategy } from "../strategy.ts";
import type { PlanJob, PlanOptions } from "./job.ts";
import { type Plan, plan, type RankedStrategy } from "./plan.ts";

/** Alternatives that are worth a line. */
const MAX_ALTERNATIVES = 4;

/** What was chosen and why, a sentence a line. */
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

/** A single node has no bytes between nodes. */
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
  /** What was chosen, and what the next best would take, in words. */
  readonly explanation: string;
  /** Everything that was compared, with its numbers. */
  readonly plan: Plan;
}

/**
 * The strategy that is predicted to take the least time, chosen by `plan` for the call that the options describe. Any other
 * call is computed too, and just as exactly; only its time may not be the least.
 *
 * Plans at once, when it is made: its `meshFor` gives the mesh for `init`, and `explanation` the reasons. Every rank plans on its
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
 * strategy.explanation.startsWith(`auto chose ${strategy.plan.best.name}`); // => true
 * ```
 */
export function auto(options: PlanOptions): AutoStrategy {
  const planResult = plan(options);
  return { ...planResult.best.strategy, name: "auto", explanation: formatExplanation(planResult), plan: planResult };
}
