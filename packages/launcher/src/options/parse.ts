import { UsageError } from "../errors.ts";
import { findClosestMatch } from "./closest-match.ts";
import { type CommandSpec, findOption, OPTIONS, type OptionSpec } from "./specs.ts";

const OUTPUT_HINT = "mosaic-run always shows and logs the output of all ranks; see --console-ranks and --log-dir";
const NO_EFFECT_HINT = "an option of torchrun without effect in mosaic-run; omit it";

/** Replacements for options of torchrun that the launcher does not have. */
const TORCHRUN_HINTS: Readonly<Record<string, string>> = {
  "no-python": "use --exec, which runs any program",
  m: "use --exec python -m <module>",
  module: "use --exec python -m <module>",
  r: OUTPUT_HINT,
  redirects: OUTPUT_HINT,
  t: OUTPUT_HINT,
  tee: OUTPUT_HINT,
  "local-ranks-filter": "use --console-ranks",
  "shutdown-timeout": "use --grace, and --failure-grace",
  "local-addr": NO_EFFECT_HINT,
  "monitor-interval": NO_EFFECT_HINT,
  "rdzv-conf": NO_EFFECT_HINT,
  "start-method": NO_EFFECT_HINT,
};

const MOSAIC_RUN_SPEC: CommandSpec = { name: "mosaic-run", options: OPTIONS, hints: TORCHRUN_HINTS };

/** A value of an option before it is parsed. */
export type RawValue = boolean | string | readonly string[];

/** A parsed command line. */
export interface CommandLine {
  readonly options: ReadonlyMap<string, RawValue>;
  readonly entry: string | undefined;
  /** All arguments after the entry, unchanged. */
  readonly args: readonly string[];
}

/**
 * Parses a command line. Options end at the first positional argument or `--`. Arguments after the entry are the
 * script's.
 */
export function parseCommandLine(argv: readonly string[], command: CommandSpec = MOSAIC_RUN_SPEC): CommandLine {
  const options = new Map<string, RawValue>();
  let argIndex = 0;
  while (argIndex < argv.length) {
    const word = argv[argIndex] as string;
    if (word === "--" || !word.startsWith("-") || word === "-") break;
    argIndex++;
    const { spec, inlineValue, isNegated } = recognizeOption(word, command);
    if (spec.kind === "flag" || isNegated) {
      if (inlineValue !== undefined && isNegated)
        throw new UsageError(`${word}: expected no value, received ${JSON.stringify(inlineValue)}`);
      options.set(spec.name, isNegated ? (spec.negatedName ?? false) : (inlineValue ?? true));
      continue;
    }
    const value = inlineValue ?? argv[argIndex++];
    if (value === undefined) throw new UsageError(`${word}: expected a value (${spec.value}), received none`);
    const previousValue = options.get(spec.name);
    options.set(
      spec.name,
      spec.kind === "list" ? [...(Array.isArray(previousValue) ? previousValue : []), value] : value,
    );
  }
  if (argv[argIndex] === "--") argIndex++;
  return { options, entry: argv[argIndex], args: argv.slice(argIndex + 1) };
}

interface RecognizedOption {
  readonly spec: OptionSpec;
  readonly inlineValue: string | undefined;
  readonly isNegated: boolean;
}

function recognizeOption(word: string, command: CommandSpec): RecognizedOption {
  const { options } = command;
  if (!word.startsWith("--")) {
    const spec = options.find(({ shortName }) => shortName === word[1]);
    if (spec === undefined || (spec.kind === "flag" && word.length > 2))
      throw unknownOptionError(word, word.slice(1), command);
    const inlineText = word.slice(2).replace(/^=/, "");
    return { spec, inlineValue: inlineText === "" ? undefined : inlineText, isNegated: false };
  }
  const equalsIndex = word.indexOf("=");
  const name = word.slice(2, equalsIndex < 0 ? undefined : equalsIndex);
  const inlineValue = equalsIndex < 0 ? undefined : word.slice(equalsIndex + 1);
  const spec = findOption(name, options);
  if (spec !== undefined) return { spec, inlineValue, isNegated: false };
  const negatedSpec = /^no[-_]/.test(name) ? findOption(name.slice(3), options) : undefined;
  if (negatedSpec === undefined) throw unknownOptionError(`--${name}`, name, command);
  if (negatedSpec.kind !== "flag" && negatedSpec.negatedName === undefined)
    throw new UsageError(`--${name}: --${negatedSpec.name} takes a value and cannot be switched off`);
  return { spec: negatedSpec, inlineValue, isNegated: true };
}

function unknownOptionError(optionText: string, name: string, command: CommandSpec): UsageError {
  const kebabCaseName = name.replaceAll("_", "-");
  const hint = Object.hasOwn(command.hints, kebabCaseName) ? command.hints[kebabCaseName] : undefined;
  if (hint !== undefined) return new UsageError(`unknown option ${optionText}: ${hint}`);
  const closestName = findClosestMatch(
    kebabCaseName,
    command.options.map((spec) => spec.name),
  );
  const suggestion = closestName === undefined ? "" : `; did you mean --${closestName}?`;
  return new UsageError(`unknown option ${optionText}${suggestion} (see ${command.name} --help)`);
}
