/**
 * Parsers of masks and lengths for commands of other packages, which then accept the same:
 * `@mosaic/strategies/command-line`.
 */
export { UsageError } from "./cli/load.ts";
export { checkMaskLength, maskUsages, parseMask } from "./cli/mask.ts";
export { parseCount } from "./cli/quantity.ts";
