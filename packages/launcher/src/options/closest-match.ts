/** Returns the candidate closest to `name`, else one with the same first four letters, else undefined. */
export function findClosestMatch(name: string, candidates: readonly string[]): string | undefined {
  const closeCandidates = candidates
    .map((candidate) => ({ candidate, distance: editDistance(name, candidate) }))
    .filter(({ candidate, distance }) => distance <= Math.max(2, Math.floor(candidate.length / 3)));
  const prefixMatch = candidates.find((candidate) => name.length >= 4 && candidate.startsWith(name.slice(0, 4)));
  return closeCandidates.toSorted((a, b) => a.distance - b.distance)[0]?.candidate ?? prefixMatch;
}

/**
 * Returns the number of insertions, deletions, substitutions and transpositions from `a` to `b` (optimal string
 * alignment).
 */
export function editDistance(a: string, b: string): number {
  let rowBeforePrevious: number[] = [];
  let previousRow = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const substitutionCost = distanceAt(previousRow, j - 1) + (a[i - 1] === b[j - 1] ? 0 : 1);
      const isTransposition = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      const transpositionCost = isTransposition ? distanceAt(rowBeforePrevious, j - 2) + 1 : Number.POSITIVE_INFINITY;
      row.push(
        Math.min(distanceAt(previousRow, j) + 1, distanceAt(row, j - 1) + 1, substitutionCost, transpositionCost),
      );
    }
    rowBeforePrevious = previousRow;
    previousRow = row;
  }
  return distanceAt(previousRow, b.length);
}

const distanceAt = (row: readonly number[], j: number): number => row[j] ?? Number.POSITIVE_INFINITY;
