import { type Coordinate, OptionError } from "@mosaic/core";
import {
  checkRepresentatives,
  formatBytes,
  maxRecordedRanks,
  predict,
  type Prediction,
  type RecordOptions,
  type Estimate,
  estimate,
} from "@mosaic/planner";
import { createStrategy, type Strategy } from "../strategy.ts";
import { createCandidates, type StrategyCandidate } from "./candidates.ts";
import { type PlanJob, type PlanOptions, resolveJob } from "./job.ts";
import { createSnippet } from "./snippet.ts";

/** A strategy, and its predicted cost. */
export interface RankedStrategy {
  readonly name: string;
  /** Equal for all grids and forms of one nesting on one mesh. */
  readonly family: string;
  /** The mesh for `init`. */
  readonly mesh: Coordinate;
  /** The backend itself, for `backend:` of a module. It rejects another mesh. */
  readonly strategy: Strategy;
  /** A program that uses it. */
  readonly code: string;
  /**
   * Whether it was simulated on all ranks, or estimated from two ranks (one above 1 024 ranks) on the assumption that
   * peers are never late.
   */
  readonly evaluatedBy: "simulation" | "estimate";
  /** Time of forward and backward of one attention, on the slowest rank. */
  readonly seconds: number;
  readonly forwardSeconds: number;
  /** The maximum over ranks of compute time, and of exposed communication: transfers that compute does not hide. */
  readonly computeSeconds: number;
  readonly exposedSeconds: number;
  /** Bytes sent within the node and to other nodes: the maximum over ranks. */
  readonly bytesWithinNodes: number;
  readonly bytesBetweenNodes: number;
  /** Peak memory: the maximum over ranks. */
  readonly peakBytes: number;
  /** Whether the peak is within `memoryLimit`. */
  readonly fits: boolean;
}

/** The result of `plan`. */
export interface Plan {
  readonly job: PlanJob;
  /** The first strategy of `ranking`. */
  readonly best: RankedStrategy;
  /** The simulation of the best strategy: its timeline, if `keepEvents` is set, and the record, to prove or draw. */
  readonly prediction: Prediction;
  /**
   * All strategies: those that fit, simulated ones first and each group from the best on, then those that do not fit.
   */
  readonly ranking: readonly RankedStrategy[];
  /** Candidates that threw an error when they were recorded, with the error. */
  readonly refused: readonly { readonly name: string; readonly mesh: Coordinate; readonly error: Error }[];
}

type RefusedCandidate = Plan["refused"][number];

/**
 * Maximum number of events of all ranks to simulate, if no option sets the number of candidates. They take some
 * seconds.
 */
const MAX_SIMULATED_EVENTS = 600_000;
/** Relative resolution: times are compared in buckets of this size, the first of which begins at the shortest time. */
export const RELATIVE_TIME_RESOLUTION = 0.01;

/**
 * Ranks the ways to compute an attention on a machine by the predicted time of one step, forward and backward: every
 * built-in strategy on every mesh of these ranks, and the caller's own candidates. Times are compared in buckets of 1
 * %, from the shortest on. Within a bucket, fewer inter-node bytes come first, then less memory.
 *
 * Each candidate's own code is recorded on two symbolic ranks, then counted and timed as if their peers kept pace.
 * The best candidates are then simulated on all ranks. Above 1 024 ranks, one rank is recorded, and one rank of each
 * class of ranks that do the same is simulated. Candidates whose ranks have unequal shares of the work, such as those
 * of a causal mask with contiguous placement, are then rejected. The result depends only on the options, so that
 * ranks that plan on their own obtain the same.
 *
 * @throws OptionError for unknown or invalid options, for more than 65 536 ranks, and if no candidate runs, or none
 * within `memoryLimit`.
 *
 * @example
 * ```ts
 * import { plan } from "@mosaic/strategies/plan";
 * const { best, ranking } = plan({ tokens: 8192, numHeads: 8, headDim: 64, gpusPerNode: 4, profile: "h100-ib400" });
 * best.fits; // => true
 * ranking.some(({ name }) => name === "ring 4"); // => true
 * ```
 */
export function plan(options: PlanOptions): Plan {
  const job = resolveJob("plan", options);
  const refused: RefusedCandidate[] = [];
  const estimatedCandidates = estimateCandidates(job, options, refused);
  const sortedCandidates = sortByCost(estimatedCandidates, ({ estimate: it }) => it);
  const fittingCandidates = sortedCandidates.filter(({ estimate: { peakBytes } }) => peakBytes <= job.memoryLimit);
  if (fittingCandidates.length === 0) throw createNoStrategyError(job, sortedCandidates.map(toPeakMemory), refused);
  const { finalists, simulatedCandidates } = simulateFinalists(job, options, fittingCandidates, refused);
  if (simulatedCandidates.length === 0) throw createNoStrategyError(job, [], refused);
  const rankedCandidates = sortByCost(simulatedCandidates, ({ prediction }) => prediction).toSorted(compareMemoryFit);
  const simulatedStrategies = rankedCandidates.map(({ rankedStrategy }) => rankedStrategy);
  const unsimulatedCandidates = sortedCandidates.filter((each) => !finalists.has(each));
  const [best] = rankedCandidates as [SimulatedCandidate, ...SimulatedCandidate[]];
  if (!best.rankedStrategy.fits) {
    throw createNoStrategyError(job, [...simulatedStrategies, ...unsimulatedCandidates.map(toPeakMemory)], refused);
  }
  const estimatedStrategies = unsimulatedCandidates.map(({ candidate, estimate: it }) =>
    createRankedStrategy(job, candidate, { evaluatedBy: "estimate", ...it }),
  );
  return {
    job,
    best: best.rankedStrategy,
    prediction: best.prediction,
    ranking: [...simulatedStrategies, ...estimatedStrategies].toSorted((a, b) => Number(b.fits) - Number(a.fits)),
    refused,
  };
}

/** Estimates all candidates from a few ranks each. Adds those that throw an error to `refused`. */
function estimateCandidates(job: PlanJob, options: PlanOptions, refused: RefusedCandidate[]): EstimatedCandidate[] {
  const candidates = createCandidates(job, options);
  const ranksToEstimate = selectSampledRanks(job.ranks);
  const checkSymmetry = createSymmetryCheck(job);
  const estimatedCandidates: EstimatedCandidate[] = [];
  for (const [i, candidate] of candidates.entries()) {
    const { name, backend, mesh } = candidate;
    options.onProgress?.({ stage: "estimate", done: i, total: candidates.length });
    try {
      checkSymmetry(candidate);
      const call = { ...job.shape, backend, mesh };
      estimatedCandidates.push({ candidate, estimate: estimate(call, job.profile, ranksToEstimate) });
    } catch (error) {
      refused.push({ name, mesh, error: error as Error });
    }
  }
  return estimatedCandidates;
}

/**
 * Simulates the best candidates on all ranks. The next candidate is also simulated for each one that does not fit, or
 * throws an error and is added to `refused`. `fittingCandidates` are sorted by cost.
 */
function simulateFinalists(
  job: PlanJob,
  options: PlanOptions,
  fittingCandidates: readonly EstimatedCandidate[],
  refused: RefusedCandidate[],
): { finalists: ReadonlySet<EstimatedCandidate>; simulatedCandidates: readonly SimulatedCandidate[] } {
  const numFinalists = options.simulate ?? computeSimulationBudget(job, fittingCandidates);
  const finalists = new Set(fittingCandidates.slice(0, numFinalists));
  const simulatedCandidates: SimulatedCandidate[] = [];
  const addFinalist = (): void => {
    const nextFinalist = fittingCandidates.find((each) => !finalists.has(each));
    if (nextFinalist) finalists.add(nextFinalist);
  };
  for (const { candidate } of finalists) {
    options.onProgress?.({ stage: "simulate", done: simulatedCandidates.length, total: finalists.size });
    try {
      const simulatedCandidate = simulateCandidate(job, candidate, options.keepEvents ?? false);
      simulatedCandidates.push(simulatedCandidate);
      // The estimate from two ranks may have been too low.
      if (!simulatedCandidate.rankedStrategy.fits) addFinalist();
    } catch (error) {
      // With this many ranks, only equivalent ones can be simulated. Another candidate takes the place of this one.
      if (job.ranks <= maxRecordedRanks) throw error;
      refused.push({ name: candidate.name, mesh: candidate.mesh, error: error as Error });
      addFinalist();
    }
  }
  return { finalists, simulatedCandidates };
}

/**
 * Returns the ranks that are estimated. If ranks differ, the last one has the most work, or the first, which then has
 * few peers like it. If there are so many that all must do the same, the last one, at the end of a node, represents
 * them.
 */
function selectSampledRanks(ranks: number): readonly number[] {
  if (ranks > maxRecordedRanks) return [ranks - 1];
  return ranks > 2 ? [ranks >> 1, ranks - 1] : [...Array(ranks).keys()];
}

/**
 * Creates a check that throws an OptionError for candidates with unequal work per rank if there are too many ranks to
 * simulate each.
 */
function createSymmetryCheck(job: PlanJob): (candidate: StrategyCandidate) => void {
  if (job.ranks <= maxRecordedRanks) return () => undefined;
  const cachedErrors = new Map<string, Error | undefined>();
  return ({ backend, mesh }) => {
    const key = JSON.stringify([Object.entries(mesh), backend.axes]);
    if (!cachedErrors.has(key)) cachedErrors.set(key, findSymmetryError({ ...job.shape, backend, mesh }, job));
    const error = cachedErrors.get(key);
    if (error) throw error;
  };
}

function findSymmetryError(call: RecordOptions, { gpusPerNode }: PlanJob): Error | undefined {
  try {
    checkRepresentatives("plan", call, gpusPerNode);
    return undefined;
  } catch (error) {
    return error as Error;
  }
}

interface EstimatedCandidate {
  readonly candidate: StrategyCandidate;
  readonly estimate: Estimate;
}

interface SimulatedCandidate {
  readonly rankedStrategy: RankedStrategy;
  readonly prediction: Prediction;
}

function computeSimulationBudget({ ranks }: PlanJob, fittingCandidates: readonly EstimatedCandidate[]): number {
  // Layouts of thousands of shards take some seconds for each candidate, even if there are few events.
  if (ranks > maxRecordedRanks) return 1;
  let events = 0;
  const firstIndexOverBudget = fittingCandidates.findIndex(
    ({ estimate: it }) => (events += it.events * ranks) > MAX_SIMULATED_EVENTS,
  );
  return firstIndexOverBudget < 0 ? fittingCandidates.length : Math.max(1, firstIndexOverBudget);
}

function simulateCandidate(job: PlanJob, candidate: StrategyCandidate, keepEvents: boolean): SimulatedCandidate {
  const { backend, mesh } = candidate;
  const prediction = predict({ ...job.shape, backend, mesh }, job.profile, { keep: () => keepEvents });
  return {
    rankedStrategy: createRankedStrategy(job, candidate, { evaluatedBy: "simulation", ...prediction }),
    prediction,
  };
}

type CostEstimate = Pick<RankedStrategy, "evaluatedBy"> & Omit<Estimate, "events">;

function createRankedStrategy(job: PlanJob, candidate: StrategyCandidate, costEstimate: CostEstimate): RankedStrategy {
  const { name, family, backend, mesh } = candidate;
  const strategy = createStrategy(backend, {
    name,
    meshFor: (ranks) => meshFor(name, mesh, { ranks, plannedRanks: job.ranks }),
    findMeshError: ({ mesh: { axes } }) => findAxisOrderError(Object.keys(mesh), axes),
  });
  return {
    name,
    family,
    mesh,
    strategy,
    code: createSnippet(job, candidate, costEstimate.seconds),
    evaluatedBy: costEstimate.evaluatedBy,
    seconds: costEstimate.seconds,
    forwardSeconds: costEstimate.forwardSeconds,
    computeSeconds: costEstimate.computeSeconds,
    exposedSeconds: costEstimate.exposedCommunicationSeconds,
    bytesWithinNodes: costEstimate.sent["intra-node"].bytes,
    bytesBetweenNodes: costEstimate.sent["inter-node"].bytes,
    peakBytes: costEstimate.peakBytes,
    fits: costEstimate.peakBytes <= job.memoryLimit,
  };
}

function meshFor(
  where: string,
  mesh: Coordinate,
  { ranks, plannedRanks }: { ranks: number; plannedRanks: number },
): Coordinate {
  if (ranks === plannedRanks) return mesh;
  throw new OptionError({
    where,
    expected: `${plannedRanks} ranks, as in the plan`,
    received: String(ranks),
    remedy: "plan for this number of ranks, or put the other ranks on a data-parallel axis, dp",
  });
}

/** Orders those that fit first. */
function compareMemoryFit(a: SimulatedCandidate, b: SimulatedCandidate): number {
  return Number(b.rankedStrategy.fits) - Number(a.rankedStrategy.fits);
}

/** Returns what is wrong with the order of axes, if anything. The plan depends on the order of ranks, too. */
function findAxisOrderError(plannedAxes: readonly string[], axes: readonly string[]): string | undefined {
  const backendAxes = axes.filter((axis) => plannedAxes.includes(axis));
  return backendAxes.every((axis, i) => axis === plannedAxes[i])
    ? undefined
    : `a mesh with its axes in the order ${backendAxes.join(", ")}`;
}

interface StrategyCost {
  readonly seconds: number;
  readonly peakBytes: number;
  readonly sent: Estimate["sent"];
}

function sortByCost<T>(items: readonly T[], getCost: (item: T) => StrategyCost): readonly T[] {
  const minSeconds = items.reduce(
    (minimum, item) => Math.min(minimum, getCost(item).seconds),
    Number.POSITIVE_INFINITY,
  );
  const getTimeBucket = ({ seconds }: StrategyCost): number =>
    Math.floor(Math.log(seconds / minSeconds) / Math.log1p(RELATIVE_TIME_RESOLUTION));
  const compare = (a: StrategyCost, b: StrategyCost): number =>
    getTimeBucket(a) - getTimeBucket(b) ||
    a.sent["inter-node"].bytes - b.sent["inter-node"].bytes ||
    a.peakBytes - b.peakBytes ||
    a.seconds - b.seconds;
  return items.toSorted((a, b) => compare(getCost(a), getCost(b)));
}

type PeakMemory = Pick<RankedStrategy, "name" | "peakBytes">;

function toPeakMemory({ candidate: { name }, estimate: { peakBytes } }: EstimatedCandidate): PeakMemory {
  return { name, peakBytes };
}

function createNoStrategyError(
  job: PlanJob,
  memoryByCandidate: readonly PeakMemory[],
  refused: readonly RefusedCandidate[],
): Error {
  if (memoryByCandidate.length === 0) {
    const { name, error } = refused[0]!;
    return new OptionError({ where: "plan", expected: "a strategy that runs", received: `${name}: ${error.message}` });
  }
  const leastMemoryCandidate = memoryByCandidate.reduce((a, b) => (b.peakBytes < a.peakBytes ? b : a));
  return new OptionError({
    where: "plan",
    expected: `memoryLimit of at least ${leastMemoryCandidate.peakBytes} bytes (${formatBytes(leastMemoryCandidate.peakBytes)})`,
    received: `${job.memoryLimit} bytes`,
    remedy: `${leastMemoryCandidate.name} needs the least memory; use more ranks, or fewer tokens`,
  });
}
