import { parseArgs, type ParseArgsConfig } from "node:util";
import { expectValue } from "@mosaic/core";
import { UsageError } from "./load.ts";
import { formatText } from "./quantity.ts";

type OptionsConfig = NonNullable<ParseArgsConfig["options"]>;
type OptionValues<T extends OptionsConfig> = ReturnType<typeof parseArgs<{ options: T; strict: true }>>["values"];

/**
 * Parses the options of a program, which takes no positional arguments, as `util.parseArgs` does. A UsageError of one
 * line reports an unknown option or an invalid value.
 *
 * @example
 * ```ts
 * import { parseOptions } from "@mosaic/strategies/command-line";
 * parseOptions("mosaic-bench", ["--ranks", "4"], { ranks: { type: "string" } }).ranks; // => "4"
 * ```
 */
export function parseOptions<const T extends OptionsConfig>(
  program: string,
  args: readonly string[],
  options: T,
): OptionValues<T> {
  const areStrings = Array.isArray(args) && args.every((each) => typeof each === "string");
  expectValue("parseOptions: args", areStrings, "an array of strings", args);
  const isObject = typeof options === "object" && options !== null;
  expectValue("parseOptions: options", isObject, "an object of options", options);
  try {
    return parseArgs({ args: [...args], options, strict: true, allowPositionals: false }).values;
  } catch (error) {
    // Node's advice follows in further lines.
    const message = (error as Error).message.split("\n", 1)[0]!.replace(/\.$/, "");
    throw new UsageError(`${message}; ${formatText(program)} --help lists all options`, { cause: error });
  }
}

/**
 * Returns the value of an option that is one of several names. Throws a UsageError for any other value.
 *
 * @example
 * ```ts
 * import { parseChoice } from "@mosaic/strategies/command-line";
 * parseChoice("placement", "zigzag", ["contiguous", "zigzag"]); // => "zigzag"
 * ```
 */
export function parseChoice<T extends string>(name: string, text: string, choices: readonly T[]): T {
  expectValue("parseChoice: choices", Array.isArray(choices), "an array of strings", choices);
  const match = choices.find((choice) => choice === text);
  if (match !== undefined) return match;
  throw new UsageError(`--${formatText(name)}: expected one of ${choices.join(", ")}, received "${formatText(text)}"`);
}
