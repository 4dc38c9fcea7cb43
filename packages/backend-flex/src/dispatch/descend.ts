import { type Assignment, evaluateAssignment } from "./assignment.ts";
import type { DispatchProblem } from "./problem.ts";

/** Problems with more chunks use only `refine`, whose swaps are cheaper but minimize a surrogate of the objective. */
export const MAX_EXACT_CHUNKS = 64;

/**
 * Tries all swaps of two chunks and rotations of three chunks, as long as one of them lowers the exact objective. Stops
 * when about `maxVisits` atoms have been visited. Returns `start` if there are more than 64 chunks.
 */
export function descend(problem: DispatchProblem, start: Assignment, maxVisits: number): Assignment {
  const { chunks, queryChunks, ranks, atomRows } = problem;
  if (chunks > MAX_EXACT_CHUNKS) return start;
  const assignment = start.slice();
  const visitsPerTrial = ranks * atomRows.length + chunks;
  const budget = { numRemainingTrials: Math.floor(maxVisits / visitsPerTrial) };
  let minObjective = evaluateAssignment(problem, assignment).objective;
  const tryRotation = (rotatedChunks: readonly number[]): boolean => {
    const previousRanks = rotatedChunks.map((chunk) => assignment[chunk]!);
    budget.numRemainingTrials--;
    for (const [i, chunk] of rotatedChunks.entries())
      assignment[chunk] = previousRanks[(i + 1) % rotatedChunks.length]!;
    const { objective } = evaluateAssignment(problem, assignment);
    if (objective < minObjective * (1 - 1e-12)) {
      minObjective = objective;
      return true;
    }
    for (const [i, chunk] of rotatedChunks.entries()) assignment[chunk] = previousRanks[i]!;
    return false;
  };
  const canSwap = (a: number, b: number): boolean =>
    assignment[a] !== assignment[b] && a < queryChunks === b < queryChunks;
  for (let hasImproved = true; hasImproved && budget.numRemainingTrials > 0; ) {
    hasImproved = false;
    for (let a = 0; a < chunks; a++) {
      for (let b = a + 1; b < chunks && budget.numRemainingTrials > 0; b++) {
        if (canSwap(a, b) && tryRotation([a, b])) hasImproved = true;
        for (let c = b + 1; c < chunks && budget.numRemainingTrials > 0; c++) {
          if (!canSwap(a, b) || !canSwap(b, c) || !canSwap(a, c)) continue;
          if (tryRotation([a, b, c]) || tryRotation([a, c, b])) hasImproved = true;
        }
      }
    }
  }
  return assignment;
}
