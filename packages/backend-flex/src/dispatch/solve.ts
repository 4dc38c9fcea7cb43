import { type Assignment, type DispatchCandidate, evaluateAssignment } from "./assignment.ts";
import { boundsOf } from "./bounds.ts";
import { affinity, greedy, groups, necklace, sequential, withKeys, zigzag } from "./candidates.ts";
import { descend, MAX_EXACT_CHUNKS } from "./descend.ts";
import { documentZigzagCandidate } from "./document-zigzag.ts";
import type { DispatchProblem } from "./problem.ts";
import { refine } from "./refine.ts";

const NECKLACE_TOLERANCES = [0, 0.003, 0.01, 0.03];
const PEEL_TOLERANCES = [0, 0.01];
const GROUP_FILLS = [1, 0.9, 0.75, 0.6];
/** Atoms that refinement visits: about half a second of one core. */
const WORK = 6e7;
/** Refinement aims a little above the bound. */
const SLACK = 1.002;

/** The best placement, and what it was found from. */
export function solve(
  problem: DispatchProblem,
  work: number = WORK,
): { readonly best: DispatchCandidate; readonly candidates: readonly DispatchCandidate[] } {
  const candidates = startsOf(problem);
  let best = least(candidates);
  if (problem.ranks === 1 || problem.totalPairs === 0) return { best, candidates };
  const { time, objective } = boundsOf(problem);
  const goal = time * SLACK;
  const floor = objective + goal - time;
  const swapped = (from: DispatchCandidate, share: number, seed: number): DispatchCandidate =>
    evaluated(problem, `${from.name}, swaps`, refine(problem, from.assignment, { goal, work: work * share, seed }));
  const movable = candidates.filter(({ placement }) => !placement);
  const family = (name: string): DispatchCandidate[] => {
    const members = movable.filter((each) => each.name.startsWith(name));
    return members.length > 0 ? [least(members)] : [];
  };
  const starts = new Set([least(movable), ...["groups", "necklace", "greedy", "affinity"].flatMap(family)]);
  const results: DispatchCandidate[] = [...movable];
  for (const start of starts) {
    if (best.objective <= floor) break;
    const result = swapped(start, 1 / 10, 12345);
    results.push(result);
    best = least([best, result]);
  }
  if (best.objective > floor) {
    const result = swapped(least(results), 1 / 2, 777);
    results.push(result);
    best = least([best, result]);
  }
  if (problem.chunks <= MAX_EXACT_CHUNKS && best.objective > floor) {
    const share = work / 10 / results.length;
    best = least([best, ...results.map((each) => descended(problem, each, share))]);
  }
  return { best, candidates };
}

function descended(problem: DispatchProblem, from: DispatchCandidate, work: number): DispatchCandidate {
  return evaluated(problem, `${from.name}, descent`, descend(problem, from.assignment, work));
}

function least(candidates: readonly DispatchCandidate[]): DispatchCandidate {
  return candidates.reduce((best, each) => (each.objective < best.objective ? each : best));
}

/** The starts of the search. */
export function startsOf(problem: DispatchProblem): DispatchCandidate[] {
  const near = affinity(problem);
  const starts: (readonly [name: string, queries: Assignment])[] = [
    ["sequential", sequential(problem)],
    ["zigzag", zigzag(problem)],
    ["greedy", greedy(problem)],
    ...(near ? [["affinity", near] as const] : []),
    ...NECKLACE_TOLERANCES.map((tolerance) => [`necklace ${tolerance}`, necklace(problem, tolerance)] as const),
    ...PEEL_TOLERANCES.map(
      (tolerance) => [`necklace ${tolerance}, peeled`, necklace(problem, tolerance, true)] as const,
    ),
    ...GROUP_FILLS.map((fill) => [`groups ${fill}`, groups(problem, fill)] as const),
  ];
  const candidates = starts.map(([name, queries]) => evaluated(problem, name, withKeys(problem, queries)));
  const documents = documentZigzagCandidate(problem);
  return documents ? [...candidates, documents] : candidates;
}

function evaluated(problem: DispatchProblem, name: string, assignment: Assignment): DispatchCandidate {
  const { time, objective } = evaluateAssignment(problem, assignment);
  return { name, assignment, time, objective };
}
