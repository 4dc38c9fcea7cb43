import { expectValue } from "./errors.ts";

/** Values of an environment variable that turn it off, as for mosaic-run. */
const offValues: readonly (string | undefined)[] = [undefined, "", "0", "false", "no", "off"];

/**
 * Returns whether an environment variable is on: set to a value other than "", "0", "false", "no" and "off", in any
 * case.
 *
 * @example
 * ```ts
 * import { environmentFlag } from "@mosaic/core";
 * environmentFlag("MOSAIC_STACKS", { MOSAIC_STACKS: "1" }); // => true
 * environmentFlag("MOSAIC_STACKS", { MOSAIC_STACKS: "Off" }); // => false
 * environmentFlag("MOSAIC_STACKS", {}); // => false
 * ```
 */
export function environmentFlag(
  name: string,
  environment: Readonly<Record<string, string | undefined>> = process.env,
): boolean {
  expectValue("environmentFlag", typeof name === "string", "the name of a variable", name);
  expectValue(
    "environmentFlag: environment",
    typeof environment === "object" && environment !== null,
    "an object",
    environment,
  );
  const value = environment[name];
  expectValue(`environmentFlag: ${name}`, value === undefined || typeof value === "string", "a string", value);
  return !offValues.includes(value?.toLowerCase());
}
