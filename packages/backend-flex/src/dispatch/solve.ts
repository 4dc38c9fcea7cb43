import { type Assignment, type DispatchCandidate, evaluateAssignment } from "./assignment.ts";
import { computeBounds } from "./bounds.ts";
import {
  affinityAssignment,
  greedyAssignment,
  documentGroupAssignment,
  necklaceAssignment,
  sequentialAssignment,
  assignKeys,
  zigzagAssignment,
} from "./candidates.ts";
import { descend, MAX_EXACT_CHUNKS } from "./descend.ts";
import { documentZigzagCandidate } from "./document-zigzag.ts";
import { createLongDocumentStart } from "./long-documents.ts";
import type { DispatchProblem } from "./problem.ts";
import { refine, type RefineOptions } from "./refine.ts";

const NECKLACE_TOLERANCES = [0, 0.003, 0.01, 0.03];
const RANK_BY_RANK_TOLERANCES = [0, 0.01];
const GROUP_FILL_FACTORS = [1, 0.9, 0.75, 0.6];
/**
 * Number of atoms, of which each search visits a share. All searches take 0.6 to 1 s on one core for 512 to 2048 chunks,
 * and proportional times for fewer or more. The counts of more chunks do not fit in the cache, so that a visit takes
 * longer.
 */
const [SEARCH_MAX_VISITS, LARGE_SEARCH_MAX_VISITS] = [1e8, 6.5e7];
const [SMALL_CHUNK_COUNT, MEDIUM_CHUNK_COUNT, LARGE_CHUNK_COUNT] = [512, 1024, 2048];
/** Number of atoms that the descent, used for few chunks, visits. */
const DESCENT_MAX_VISITS = 6e6;
/** The target time of refinement is slightly above the bound. */
const TARGET_SLACK = 1.002;
/** A time up to this multiple of the target counts as the target. */
const TARGET_TOLERANCE = 1.0001;
/**
 * The target time decreases over successive searches, each of which starts from the previous result. Near the bound,
 * almost every swap of chunks of a long document exceeds the target. A higher target permits swaps that gather its last
 * chunks on fewer ranks, which lowers the rows. The next search balances the pairs again.
 */
const TARGET_STAGES = [
  { factor: 1.01, seed: 777, threshold: 10 },
  { factor: 1.004, seed: 778, threshold: 3 },
  { factor: 1, seed: 779, threshold: 3 },
];
const TARGET_GAP_SHARES = [0.5, 0.8];
/**
 * The searches with decreasing targets end before they converge. Further searches continue from the best placement that
 * a search found, with the best time as the target, and mostly lower its rows. The share of visits of each is smaller
 * for many chunks, so that 1 M rows on 256 ranks take less than a second.
 */
const CONTINUATION_SEEDS = [4242, 4243];
const [CONTINUATION_SHARE, LARGE_CONTINUATION_SHARE] = [1 / 3, 1 / 6];
const CONTINUATION_THRESHOLD = 1;
/**
 * The last searches have a target between the bound and the best time: first halfway. If a search does not lower the
 * objective, the next target is closer to the best time. The ranks of a long document receive a whole number of its
 * chunks, so that a target can be slightly too low for one rank, whose time is then that of the whole placement.
 */
const LOWER_TARGET_SEEDS = [5000, 5001, 5002, 5003];
const [LOWER_TARGET_VISIT_SHARE, LARGE_LOWER_TARGET_VISIT_SHARE] = [1 / 12, 1 / 24];
/** The target time is higher for the start with long documents, because their fixed chunks leave fewer swaps. */
const LONG_DOCUMENT_TIME_FACTOR = 1.005;
/** Share of the visits that place long documents. */
const GROUP_VISIT_SHARE = 1 / 24;

/** Returns the best placement and the starts of the search. */
export function solve(
  problem: DispatchProblem,
  maxVisits: number = computeDefaultMaxVisits(problem),
): { readonly best: DispatchCandidate; readonly candidates: readonly DispatchCandidate[] } {
  const candidates = createStartCandidates(problem);
  let best = findBestCandidate(candidates);
  if (problem.ranks === 1 || problem.totalPairs === 0) return { best, candidates };
  const { time, objective } = computeBounds(problem);
  const targetTime = time * TARGET_SLACK;
  const attainableObjective = objective + targetTime - time;
  const refinableCandidates = candidates.filter(({ placement }) => !placement);
  const results: DispatchCandidate[] = [...refinableCandidates];
  const search = (
    initialCandidate: DispatchCandidate,
    visitShare: number,
    options: Omit<RefineOptions, "maxVisits">,
  ): DispatchCandidate => {
    if (best.objective <= attainableObjective) return initialCandidate;
    const assignment = refine(problem, initialCandidate.assignment, { ...options, maxVisits: maxVisits * visitShare });
    const result = evaluateCandidate(problem, `${initialCandidate.name}, swaps`, assignment);
    results.push(result);
    best = findBestCandidate([best, result]);
    return result;
  };
  const selectBestOfFamily = (name: string): DispatchCandidate[] => {
    const members = refinableCandidates.filter((each) => each.name.startsWith(name));
    return members.length > 0 ? [findBestCandidate(members)] : [];
  };
  const searchStarts = new Set([
    findBestCandidate(refinableCandidates),
    ...["groups", "necklace", "greedy", "affinity"].flatMap(selectBestOfFamily),
  ]);
  for (const start of searchStarts) search(start, 1 / 12, { targetTime, seed: 12345, threshold: 3 });
  const longDocumentStart =
    best.time > targetTime ? createLongDocumentStart(problem, targetTime, maxVisits * GROUP_VISIT_SHARE) : undefined;
  if (longDocumentStart) {
    const { assignment, isFixed } = longDocumentStart;
    search(evaluateCandidate(problem, "long documents", assignment), 1 / 12, {
      targetTime: targetTime * LONG_DOCUMENT_TIME_FACTOR,
      seed: 12345,
      threshold: 3,
      isFixed,
    });
  }
  let stageResult = findBestCandidate(results);
  for (const { factor, ...options } of TARGET_STAGES)
    stageResult = search(stageResult, 1 / 3 / TARGET_STAGES.length, { targetTime: targetTime * factor, ...options });
  if (best.time <= targetTime * TARGET_TOLERANCE) {
    search(findBestCandidate(results), 1 / 6, { targetTime, seed: 54321, threshold: 1 });
  } else {
    // If not all ranks can reach the target, use targets close to the current time, so that only the slowest ranks
    // exceed them.
    for (const gapShare of TARGET_GAP_SHARES) {
      search(findBestCandidate(results), 1 / 6 / TARGET_GAP_SHARES.length, {
        targetTime: targetTime + gapShare * (best.time - targetTime),
        seed: 777,
      });
    }
  }
  if (problem.chunks > MAX_EXACT_CHUNKS) {
    const isLarge = problem.chunks > MEDIUM_CHUNK_COUNT;
    for (const seed of CONTINUATION_SEEDS) {
      search(findBestCandidate(results), isLarge ? LARGE_CONTINUATION_SHARE : CONTINUATION_SHARE, {
        targetTime: Math.max(targetTime, best.time),
        seed,
        threshold: CONTINUATION_THRESHOLD,
      });
    }
    let gapShare = 0.5;
    for (const seed of LOWER_TARGET_SEEDS) {
      const start = findBestCandidate(results);
      const result = search(start, isLarge ? LARGE_LOWER_TARGET_VISIT_SHARE : LOWER_TARGET_VISIT_SHARE, {
        targetTime: start.time - gapShare * (start.time - time),
        seed,
        threshold: CONTINUATION_THRESHOLD,
      });
      if (result.objective >= start.objective) gapShare /= 2;
    }
  } else if (best.objective > attainableObjective) {
    best = findBestCandidate([
      best,
      ...results.map((each) => runDescent(problem, each, DESCENT_MAX_VISITS / results.length)),
    ]);
  }
  return { best, candidates };
}

function computeDefaultMaxVisits({ chunks }: DispatchProblem): number {
  if (chunks <= MEDIUM_CHUNK_COUNT) return SEARCH_MAX_VISITS * Math.min(1, chunks / SMALL_CHUNK_COUNT);
  return LARGE_SEARCH_MAX_VISITS * Math.max(1, chunks / LARGE_CHUNK_COUNT);
}

function runDescent(
  problem: DispatchProblem,
  initialCandidate: DispatchCandidate,
  maxVisits: number,
): DispatchCandidate {
  return evaluateCandidate(
    problem,
    `${initialCandidate.name}, descent`,
    descend(problem, initialCandidate.assignment, maxVisits),
  );
}

function findBestCandidate(candidates: readonly DispatchCandidate[]): DispatchCandidate {
  return candidates.reduce((best, each) => (each.objective < best.objective ? each : best));
}

/** Creates the starts of the search. */
export function createStartCandidates(problem: DispatchProblem): DispatchCandidate[] {
  const affinityQueryAssignment = affinityAssignment(problem);
  const namedAssignments: (readonly [name: string, queries: Assignment])[] = [
    ["sequential", sequentialAssignment(problem)],
    ["zigzag", zigzagAssignment(problem)],
    ["greedy", greedyAssignment(problem)],
    ...(affinityQueryAssignment ? [["affinity", affinityQueryAssignment] as const] : []),
    ...NECKLACE_TOLERANCES.map(
      (tolerance) => [`necklace ${tolerance}`, necklaceAssignment(problem, tolerance)] as const,
    ),
    ...RANK_BY_RANK_TOLERANCES.map(
      (tolerance) => [`necklace ${tolerance}, peeled`, necklaceAssignment(problem, tolerance, true)] as const,
    ),
    ...GROUP_FILL_FACTORS.map(
      (fillFactor) => [`groups ${fillFactor}`, documentGroupAssignment(problem, fillFactor)] as const,
    ),
  ];
  const candidates = namedAssignments.map(([name, queries]) =>
    evaluateCandidate(problem, name, assignKeys(problem, queries)),
  );
  const documentCandidate = documentZigzagCandidate(problem);
  return documentCandidate ? [...candidates, documentCandidate] : candidates;
}

function evaluateCandidate(problem: DispatchProblem, name: string, assignment: Assignment): DispatchCandidate {
  const { time, objective } = evaluateAssignment(problem, assignment);
  return { name, assignment, time, objective };
}
