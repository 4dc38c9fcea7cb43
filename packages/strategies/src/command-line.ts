/**
 * Parsers of options, masks and lengths for commands of other packages, which then accept the same:
 * `@mosaic/strategies/command-line`.
 */
export { UsageError } from "./cli/load.ts";
export { checkMaskLength, maskUsages, parseMask } from "./cli/mask.ts";
export { parseChoice, parseOptions } from "./cli/options.ts";
export { parseCount } from "./cli/quantity.ts";
