import { accessSync, constants, statSync, writeFileSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { UsageError } from "./load.ts";

/** Where what was found goes cannot be written, full as it is perhaps: exit code 1. */
export class OutputError extends Error {
  override readonly name: string = "OutputError";
}

/** Writes a line or many to the standard output. A reader that closed its end is no error. */
export function print(text: string): Promise<void> {
  const { stdout } = process;
  // The callback reports what went wrong; without a listener of its own the event would end the process.
  if (stdout.listenerCount("error") === 0) stdout.on("error", () => {});
  return new Promise((done, fail) => {
    stdout.write(`${text}\n`, (error) => {
      if (!error || (error as NodeJS.ErrnoException).code === "EPIPE") done();
      else fail(new OutputError(`cannot write what was found: ${error.message}`, { cause: error }));
    });
  });
}

/** Notes go to the standard error, as long as somebody reads them. */
export function note(text: string): void {
  const { stderr } = process;
  if (stderr.listenerCount("error") === 0) stderr.on("error", () => {});
  stderr.write(text);
}

/** Files that options name, checked before the work that is to be written to them. */
export function checkTargets(targets: Readonly<Record<string, string | undefined>>): void {
  const seen = new Map<string, string>();
  for (const [option, path] of Object.entries(targets)) {
    if (path === undefined) continue;
    const other = seen.get(resolve(path));
    if (other !== undefined) throw new UsageError(`--${option} ${path}: expected another file than that of --${other}`);
    seen.set(resolve(path), option);
    attempt(option, path, () => {
      const found = statSync(path, { throwIfNoEntry: false });
      if (found?.isDirectory()) throw new Error("expected a file, received a directory");
      accessSync(found ? path : dirname(resolve(path)), constants.W_OK);
    });
  }
}

/** Writes a file that an option names. */
export function save(option: string, path: string, text: string): void {
  attempt(option, path, () => writeFileSync(path, text));
}

function attempt(option: string, path: string, act: () => void): void {
  try {
    act();
  } catch (error) {
    throw new UsageError(`--${option} ${path}: ${(error as Error).message}`, { cause: error });
  }
}
