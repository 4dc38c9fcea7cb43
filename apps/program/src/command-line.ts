import { getEventListeners } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { constants, tmpdir } from "node:os";
import { join } from "node:path";
import { RanksFailedError } from "./ranks.ts";

/** The command line cannot be understood; the message states what would be. */
export class UsageError extends Error {
  override readonly name: string = "UsageError";
}

/** Aborted by SIGINT and SIGTERM, which end the program at once while nothing listens. */
export function abortOnSignals(): AbortSignal {
  const abortController = new AbortController();
  for (const name of ["SIGINT", "SIGTERM"] as const) {
    process.on(name, () => {
      // The launcher listens while it has ranks to end; else there is nothing to wait for.
      const hasRanks = getEventListeners(abortController.signal, "abort").length > 0;
      abortController.abort();
      if (!hasRanks) process.exit(128 + constants.signals[name]);
    });
  }
  return abortController.signal;
}

/** The program's exit code: what `body` returns, 2 for a UsageError, that of ranks that failed. Prints either error. */
export async function runProgram(usage: string, body: () => Promise<number>): Promise<number> {
  try {
    return await body();
  } catch (error) {
    if (error instanceof UsageError) console.error(`${error.message}\n\n${usage}`);
    else if (error instanceof RanksFailedError) console.error(error.message);
    else throw error;
    return error instanceof UsageError ? 2 : error.exitCode;
  }
}

/** What the first argument names, and gets the others. */
export type Commands = Readonly<Record<string, (args: readonly string[]) => Promise<void> | void>>;

/** Runs one of several commands, or prints the usage for --help; returns the exit code. */
export function runCommand(argv: readonly string[], usage: string, commands: Commands): Promise<number> {
  return runProgram(usage, async () => {
    const [name = "--help", ...args] = argv;
    if (name === "--help" || args.includes("--help")) {
      console.log(usage);
      return 0;
    }
    const command = Object.hasOwn(commands, name) ? commands[name] : undefined;
    if (!command) {
      throw new UsageError(`command: expected one of ${Object.keys(commands).join(", ")}, received "${name}"`);
    }
    await command(args);
    return 0;
  });
}

/** `body` with a directory that is removed when it ends, or the process does. */
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
