import { parseArgs, type ParseArgsConfig } from "node:util";

/** Parses an integer from `min` to `max` of the command line. Throws an Error that reports what was expected. */
export function parseInteger(name: string, text: string, [min, max]: readonly [number, number]): number {
  const value = Number(text);
  if (/^\d+$/.test(text) && value >= min && value <= max) return value;
  const range = max === Number.MAX_SAFE_INTEGER ? `from ${min}` : `from ${min} to ${max}`;
  throw new Error(`${name}: expected an integer ${range}, received "${text}"`);
}

type OptionConfig = NonNullable<ParseArgsConfig["options"]>;
/** Values of the options on a command line. */
type OptionValues<Options extends OptionConfig> = ReturnType<typeof parseArgs<{ options: Options }>>["values"];

/**
 * Returns what `parse` makes of the options on the command line of this program. Prints the usage and exits for --help,
 * with exit code 0, and for an invalid command line, with the error and exit code 2.
 */
export function parseCommandLine<const Options extends OptionConfig, Settings>(
  usage: string,
  options: Options,
  parse: (values: OptionValues<Options>) => Settings,
): Settings {
  if (process.argv.slice(2).some((word) => word === "--help" || word === "-h")) {
    console.log(usage);
    process.exit(0);
  }
  try {
    return parse(parseArgs<{ options: Options }>({ options }).values);
  } catch (error) {
    console.error(`${(error as Error).message}\n\n${usage}`);
    return process.exit(2);
  }
}
