// A file is written under a temporary name in the same directory, and then renamed. The temporary name contains the
// host and the process that writes, so that files left by killed processes can be distinguished from files still being
// written.
import { randomUUID } from "node:crypto";
import { type FileHandle, open, readdir, rename, rm, stat } from "node:fs/promises";
import { hostname } from "node:os";
import { basename, dirname, join } from "node:path";
import { describeOtherFile } from "./file-kind.ts";
import { FileError } from "./format.ts";

/** Temporary files that this process is writing. */
const ownTemporaryPaths = new Set<string>();

const temporaryPrefix = (path: string): string => `.${basename(path)}.${hostname().replaceAll(/[^\w-]/g, "_")}.`;

/** A complete file on disk, under a temporary name. Finished by either `publish` or `discard`. */
export interface StagedFile {
  /** The temporary path. */
  readonly path: string;
  /** Renames the file to its final name, replacing an existing file. Resolves when the rename is on disk. */
  publish(): Promise<void>;
  /** Removes the file. */
  discard(): Promise<void>;
}

/**
 * Writes a file under a temporary name and flushes it to disk. `write` receives a function that appends bytes.
 * Temporary files of the same file that killed processes of this host left are removed.
 *
 * @throws FileError if the path is that of a directory, a device, a FIFO or a socket, or the system cannot write the
 * file, also from `publish`; an error of `write`.
 */
export async function stageFile(
  path: string,
  write: (append: (bytes: Uint8Array) => Promise<void>) => Promise<void>,
): Promise<StagedFile> {
  const temporaryPath = join(dirname(path), `${temporaryPrefix(path)}${process.pid}.${randomUUID()}.part`);
  const discard = async (): Promise<void> => {
    try {
      await rm(temporaryPath, { force: true });
    } finally {
      ownTemporaryPaths.delete(temporaryPath);
    }
  };
  // The error of the write is thrown, not that of a removal that fails for the same reason.
  const discardAfterError = (): Promise<void> => discard().catch(() => {});
  await checkTarget(path);
  ownTemporaryPaths.add(temporaryPath);
  try {
    await removeStaleTemporaryFiles(path);
    const file = await open(temporaryPath, "wx");
    try {
      await write((bytes) => append(file, bytes));
      await file.sync();
    } finally {
      await file.close();
    }
  } catch (error) {
    await discardAfterError();
    throw toWriteError(path, error);
  }
  const publish = async (): Promise<void> => {
    try {
      await rename(temporaryPath, path);
    } catch (error) {
      await discardAfterError();
      throw toWriteError(path, error);
    }
    ownTemporaryPaths.delete(temporaryPath);
    await syncDirectory(dirname(path));
  };
  return { path: temporaryPath, publish, discard };
}

/** Throws a FileError for a path of anything but a regular file, which a rename would replace, as it would a device. */
async function checkTarget(path: string): Promise<void> {
  const stats = await stat(path).catch(() => undefined);
  const received = stats && describeOtherFile(stats);
  if (received === undefined) return;
  const remedy = "pass the path of a regular file; nothing was changed";
  throw new FileError({ where: path, expected: "a file that can be written", received, remedy });
}

/** Returns a FileError that names the path, which the system's errors of a full disk omit. Returns other errors as they are. */
function toWriteError(path: string, error: unknown): unknown {
  const { syscall, message } = error as NodeJS.ErrnoException;
  if (syscall === undefined) return error;
  const remedy = "free space, correct the path or its permissions; an existing file was not changed";
  return new FileError(
    { where: path, expected: "a file that can be written", received: message, remedy },
    { cause: error },
  );
}

/** Removes the temporary files that killed processes of this host left. */
async function removeStaleTemporaryFiles(path: string): Promise<void> {
  const prefix = temporaryPrefix(path);
  for (const name of await readdir(dirname(path))) {
    if (!name.startsWith(prefix)) continue;
    const pid = Number(/^(\d+)\.[0-9a-f-]{36}\.part$/.exec(name.slice(prefix.length))?.[1] ?? Number.NaN);
    const candidatePath = join(dirname(path), name);
    if (!Number.isNaN(pid) && !isBeingWritten(pid, candidatePath)) await rm(candidatePath, { force: true });
  }
}

/** Returns whether a process may still be writing the file. */
function isBeingWritten(pid: number, path: string): boolean {
  // The first process of a container has the same ID after every restart.
  if (pid === process.pid) return ownTemporaryPaths.has(path);
  try {
    return process.kill(pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== "ESRCH";
  }
}

async function append(file: FileHandle, bytes: Uint8Array): Promise<void> {
  const maxWriteBytes = 2 ** 30;
  for (let numBytesWritten = 0; numBytesWritten < bytes.length; ) {
    const { bytesWritten } = await file.write(
      bytes,
      numBytesWritten,
      Math.min(maxWriteBytes, bytes.length - numBytesWritten),
    );
    numBytesWritten += bytesWritten;
  }
}

/** Flushes a directory to disk, and with it the renames in it. */
async function syncDirectory(path: string): Promise<void> {
  const directory = await open(path, "r");
  try {
    await directory.sync();
  } finally {
    await directory.close();
  }
}
