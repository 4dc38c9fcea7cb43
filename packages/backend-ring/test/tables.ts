import type { DependencyTable } from "@mosaic/core/context-parallel";

/**
 * Creates a dependency table for tests. By default, every rank needs the keys of all ranks. Shards have five keys each.
 */
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
