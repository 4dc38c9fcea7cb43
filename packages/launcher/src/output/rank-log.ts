import { closeSync, mkdirSync, openSync, statSync, writeSync } from "node:fs";
import { dirname, join } from "node:path";
import { argument, mismatch } from "../arguments.ts";
import { UsageError } from "../errors.ts";
import type { StreamName } from "../job.ts";

/**
 * A rank's log directory: stdout.log and stderr.log with the exact bytes, and error.json if the rank wrote one.
 *
 * Logs are written synchronously, before the output is processed further, so that they are complete even if the
 * launcher is killed. When the disk is full, the log of that stream ends and the job continues.
 */
export class RankLog {
  readonly directory: string;
  readonly #files: Map<StreamName, number>;

  constructor(dir: string) {
    this.directory = dir;
    createDirectory(dir);
    this.#files = new Map([
      ["stdout", openSync(this.path("stdout"), "a")],
      ["stderr", openSync(this.path("stderr"), "a")],
    ]);
  }

  path(stream: StreamName): string {
    return join(this.directory, `${stream}.log`);
  }

  get errorFile(): string {
    return join(this.directory, "error.json");
  }

  /** Appends to the log of a stream. Returns the error that ends the log, once; later chunks are not logged. */
  write(stream: StreamName, chunk: Buffer): Error | undefined {
    const fd = this.#files.get(stream);
    if (fd === undefined) return undefined;
    try {
      for (let writtenBytes = 0; writtenBytes < chunk.length; ) writtenBytes += writeSync(fd, chunk, writtenBytes);
      return undefined;
    } catch (error) {
      this.#close(stream);
      return error as Error;
    }
  }

  close(): void {
    for (const stream of [...this.#files.keys()]) this.#close(stream);
  }

  #close(stream: StreamName): void {
    const fd = this.#files.get(stream);
    this.#files.delete(stream);
    if (fd !== undefined) closeSync(fd);
  }
}

/**
 * Creates a directory and its missing parents. Throws the system's error.
 *
 * Node's `recursive` option is not used, because it retries forever in an existing directory that refuses new ones with
 * ENOENT, as /proc.
 *
 * @example
 * ```ts
 * import { mkdtempSync, statSync } from "node:fs";
 * import { tmpdir } from "node:os";
 * import { join } from "node:path";
 * import { createDirectory } from "@mosaic/launcher";
 * const directory = join(mkdtempSync(join(tmpdir(), "mosaic-")), "runs", "1");
 * createDirectory(directory);
 * statSync(directory).isDirectory(); // => true
 * createDirectory("/proc/x"); // throws ENOENT
 * ```
 */
export function createDirectory(path: string): void {
  const pathError = mismatch(argument.string, path);
  if (pathError !== undefined) throw new UsageError(`createDirectory: path: ${pathError}`);
  if (statSync(path, { throwIfNoEntry: false })?.isDirectory() === true) return;
  const parentDirectory = dirname(path);
  if (parentDirectory !== path) createDirectory(parentDirectory);
  try {
    mkdirSync(path);
  } catch (error) {
    // EEXIST is not an error if another process has created the directory meanwhile.
    if ((error as NodeJS.ErrnoException).code !== "EEXIST" || !statSync(path).isDirectory()) throw error;
  }
}
