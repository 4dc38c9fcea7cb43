/** How commands read masks and lengths: `@mosaic/strategies/command-line`, for commands of other packages to read them alike. */
export { UsageError } from "./cli/load.ts";
export { checkMaskLength, maskUsages, parseMask } from "./cli/mask.ts";
export { parseCount } from "./cli/quantity.ts";
