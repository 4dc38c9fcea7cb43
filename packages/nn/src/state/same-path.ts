import { expectValue, formatValue, OptionError } from "@mosaic/core";

/**
 * Throws an OptionError unless all ranks passed the same path. It is for functions whose rank 0 writes the only files.
 *
 * @param paths The path of each rank, by rank, as `allGatherObject` returns them.
 * @example
 * ```ts
 * import { checkSamePath } from "@mosaic/nn";
 * checkSamePath("save: path", ["out", "out"]);
 * checkSamePath("save: path", ["out", "out1"]); // throws save: path: expected the same path on every rank, received "out" on rank 0 and "out1" on rank 1
 * ```
 */
export function checkSamePath(where: string, paths: readonly string[]): void {
  const arePaths = Array.isArray(paths) && paths.every((path) => typeof path === "string");
  expectValue("checkSamePath: paths", arePaths, "an array, the path of each rank", paths);
  const otherRank = paths.findIndex((path) => path !== paths[0]);
  if (otherRank < 0) return;
  throw new OptionError({
    where,
    expected: "the same path on every rank",
    received: `${formatValue(paths[0])} on rank 0 and ${formatValue(paths[otherRank])} on rank ${otherRank}`,
    remedy: "pass one path: rank 0 writes for all ranks",
  });
}
