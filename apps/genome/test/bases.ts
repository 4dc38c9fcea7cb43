/** Formats numbers as "ACGT", with "-" for masked bases. */
export function formatBases(bases: ArrayLike<number>): string {
  return Array.from(bases, (base) => "ACGT-"[base]).join("");
}
