// A file is written under a temporary name beside its own, and renamed. The name has the host and the process that writes, so that
// what a killed process left is distinguished from what another still writes.
import { randomUUID } from "node:crypto";
import { type FileHandle, open, readdir, rename, rm } from "node:fs/promises";
import { hostname } from "node:os";
import { basename, dirname, join } from "node:path";

/** Temporary files that this process is writing. */
const ownTemporaryPaths = new Set<string>();

const temporaryPrefix = (path: string): string => `.${basename(path)}.${hostname().replaceAll(/[^\w-]/g, "_")}.`;

/** A file that is whole and on the disk, under a temporary name. Either call ends it. */
export interface StagedFile {
  /** The temporary path. */
  readonly path: string;
  /** Renames it to its own name, where it replaces what was there; resolves when that is on the disk. */
  publish(): Promise<void>;
  /** Removes it. */
  discard(): Promise<void>;
}

/**
 * Writes a file under a temporary name and flushes it to the disk; `write` is called with what appends bytes. What processes of this
 * host that were killed left of the same file is removed.
 */
export async function stageFile(
  path: string,
  write: (append: (bytes: Uint8Array) => Promise<void>) => Promise<void>,
): Promise<StagedFile> {
  const temporaryPath = join(dirname(path), `${temporaryPrefix(path)}${process.pid}.${randomUUID()}.part`);
  const discard = async (): Promise<void> => {
    await rm(temporaryPath, { force: true });
    ownTemporaryPaths.delete(temporaryPath);
  };
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
    await discard();
    throw error;
  }
  const publish = async (): Promise<void> => {
    try {
      await rename(temporaryPath, path);
    } finally {
      await discard();
    }
    await syncDirectory(dirname(path));
  };
  return { path: temporaryPath, publish, discard };
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

/** Whether a process may still be writing that file. */
function isBeingWritten(pid: number, path: string): boolean {
  // A container's first process has the same number each time.
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

/** A rename is on the disk once its directory is. */
async function syncDirectory(path: string): Promise<void> {
  const directory = await open(path, "r");
  try {
    await directory.sync();
  } finally {
    await directory.close();
  }
}
