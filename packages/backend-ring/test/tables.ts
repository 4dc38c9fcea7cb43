import type { DependencyTable } from "@mosaic/core/context-parallel";

/** Dependencies as a test would have them; all on all by default. Shards have five keys each. */
export function createTable(
  size: number,
  needs: (rank: number, source: number) => boolean = () => true,
): DependencyTable {
  const rows = () => 5;
  return { axis: "sp", size, isEmpty: false, queryRows: rows, keyRows: rows, needsCompute: needs, needsKv: needs };
}

export function listRanks(size: number): number[] {
  return Array.from({ length: size }, (_, rank) => rank);
}
