import { getEventListeners } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs, type ParseArgsConfig } from "node:util";
import { RanksFailedError, SignalError } from "./ranks.ts";

/** Error of an invalid command line. The message states what is expected. */
export class UsageError extends Error {
  override readonly name: string = "UsageError";
}

/** Returns the option name of a setting: "learning-rate" for "learningRate". */
export const toOptionName = (setting: string): string =>
  setting.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);

type OptionConfig = NonNullable<ParseArgsConfig["options"]>;
type OptionValues<Options extends OptionConfig> = ReturnType<typeof parseArgs<{ options: Options }>>["values"];

/** Parses options by `parseArgs` of Node. Throws a UsageError of one line for unknown options and for missing values. */
export function parseFlags<const Options extends OptionConfig>(
  args: readonly string[],
  options: Options,
): OptionValues<Options> {
  try {
    return parseArgs({ args: [...args], options, strict: true }).values;
  } catch (error) {
    const message = (error as Error).message.replaceAll(/\.?\n/g, "; ").replace(/\.$/, "");
    throw new UsageError(`${message}; --help lists all options`, { cause: error });
  }
}

/** Returns the text of an option if it is one of the choices. Throws a UsageError otherwise. */
export function parseChoice<T extends string>(name: string, text: string, choices: readonly T[]): T {
  const matchingChoice = choices.find((choice) => choice === text);
  if (matchingChoice !== undefined) return matchingChoice;
  throw new UsageError(`--${name}: expected one of ${choices.join(", ")}, received "${text}"`);
}

/** Returns a signal that SIGINT and SIGTERM abort. While it has no listeners, they end the program at once. */
export function abortOnSignals(): AbortSignal {
  const abortController = new AbortController();
  for (const name of ["SIGINT", "SIGTERM"] as const) {
    process.on(name, () => {
      // The launcher listens while it has ranks to terminate. Otherwise there is nothing to wait for.
      const hasRanks = getEventListeners(abortController.signal, "abort").length > 0;
      const reason = new SignalError(name);
      abortController.abort(reason);
      if (!hasRanks) process.exit(reason.exitCode);
    });
  }
  return abortController.signal;
}

/** Records the first error of standard output. Without a listener, an error would end the program. */
class OutputErrors {
  #error: NodeJS.ErrnoException | undefined;

  constructor() {
    process.stdout.on("error", (error: NodeJS.ErrnoException) => (this.#error ??= error));
    process.stderr.on("error", () => {});
  }

  /** Resolves to the error, unless the reader has closed the pipe, as `head` does. */
  async find(): Promise<Error | undefined> {
    // Resolves when everything has been written. Errors are emitted later than the write that caused them.
    await new Promise<void>((resolve) => process.stdout.write("", () => setImmediate(resolve)));
    return this.#error?.code === "EPIPE" ? undefined : this.#error;
  }
}

/**
 * Runs `body` and returns the program's exit code: the result of `body`, 2 for a UsageError, the exit code of failed
 * ranks, or 1 if the output cannot be written. Prints these errors. A closed pipe is not an error.
 */
export async function runProgram(body: () => Promise<number>): Promise<number> {
  const outputErrors = new OutputErrors();
  const exitCode = await runBody(body);
  const outputError = await outputErrors.find();
  if (!outputError) return exitCode;
  console.error(`cannot write to standard output: ${outputError.message}`);
  return exitCode === 0 ? 1 : exitCode;
}

async function runBody(body: () => Promise<number>): Promise<number> {
  try {
    return await body();
  } catch (error) {
    if (!(error instanceof UsageError || error instanceof RanksFailedError)) throw error;
    console.error(error.message);
    return error instanceof UsageError ? 2 : error.exitCode;
  }
}

/** Commands by name. The first argument names the command, which receives the other arguments. */
export type Commands = Readonly<Record<string, (args: readonly string[]) => Promise<void> | void>>;

/** Runs one of several commands, or prints the usage for --help. Returns the exit code. */
export function runCommand(argv: readonly string[], usage: string, commands: Commands): Promise<number> {
  return runProgram(async () => {
    const [name = "--help", ...args] = argv;
    if (name === "--help" || args.includes("--help")) {
      console.log(usage);
      return 0;
    }
    const command = Object.hasOwn(commands, name) ? commands[name] : undefined;
    if (!command) {
      const commandNames = Object.keys(commands).join(", ");
      throw new UsageError(`command: expected one of ${commandNames}, received "${name}"; see --help`);
    }
    await command(args);
    return 0;
  });
}

/** Runs `body` with a temporary directory, which is removed when `body` completes or the process exits. */
export async function withTemporaryDirectory<T>(prefix: string, body: (directory: string) => Promise<T>): Promise<T> {
  const directory = mkdtempSync(join(tmpdir(), prefix));
  const remove = (): void => rmSync(directory, { recursive: true, force: true });
  process.once("exit", remove);
  try {
    return await body(directory);
  } finally {
    process.off("exit", remove);
    remove();
  }
}
