/** Levels of factors, by name. */
export type Factors = Readonly<Record<string, readonly unknown[]>>;

/** One level of each factor. */
export type Combination<F extends Factors> = { readonly [Name in keyof F]: F[Name][number] };

/**
 * Returns combinations in which any two levels of two factors occur together at least once: a covering array of
 * strength 2, found greedily as in AETG (Cohen et al. 1997), without its random trials. The same factors give the same
 * combinations.
 *
 * @example
 * ```ts
 * import { pairwise } from "@mosaic/conformance";
 * const rows = pairwise({ a: [1, 2, 3], b: ["x", "y"], c: [false, true] });
 * rows.length; // => 6
 * rows.some(({ b, c }) => b === "y" && c === false); // => true
 * ```
 */
export function pairwise<const F extends Factors>(factors: F): Combination<F>[] {
  const names = Object.keys(factors);
  const uncoveredPairs = new Set<string>();
  for (const [i, factorName] of names.entries()) {
    for (const otherName of names.slice(i + 1)) {
      for (const a of factors[factorName]!.keys())
        for (const b of factors[otherName]!.keys()) uncoveredPairs.add(pairKey([factorName, a], [otherName, b]));
    }
  }
  const rows: Combination<F>[] = [];
  while (uncoveredPairs.size > 0) {
    const [firstPair] = uncoveredPairs;
    const row = new Map<string, number>(JSON.parse(firstPair!) as [string, number][]);
    for (const name of names)
      if (!row.has(name)) row.set(name, selectBestLevel(name, factors[name]!.length, { row, uncoveredPairs }));
    const chosenLevels = [...row];
    for (const [i, chosenLevel] of chosenLevels.entries())
      for (const otherLevel of chosenLevels.slice(i + 1)) uncoveredPairs.delete(pairKey(chosenLevel, otherLevel));
    const combinationEntries = names.map((name) => [name, factors[name]![row.get(name)!]]);
    rows.push(Object.fromEntries(combinationEntries) as Combination<F>);
  }
  return rows;
}

type FactorLevel = readonly [name: string, index: number];

/** Returns the key of a pair, with its levels in the order of names so that the key is unique. */
function pairKey(a: FactorLevel, b: FactorLevel): string {
  return JSON.stringify(a[0] < b[0] ? [a, b] : [b, a]);
}

/** Returns the level that covers most new pairs with the levels of the row so far. */
function selectBestLevel(
  name: string,
  count: number,
  { row, uncoveredPairs }: { readonly row: ReadonlyMap<string, number>; readonly uncoveredPairs: ReadonlySet<string> },
): number {
  const countNewPairs = (level: number): number =>
    [...row].filter((other) => uncoveredPairs.has(pairKey([name, level], other))).length;
  const levels = Array.from({ length: count }, (_, level) => level);
  return levels.reduce((bestLevel, level) => (countNewPairs(level) > countNewPairs(bestLevel) ? level : bestLevel), 0);
}
