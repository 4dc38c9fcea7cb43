import {
  closeSync,
  ftruncateSync,
  lstatSync,
  openSync,
  readdirSync,
  readSync,
  rmSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { tmpdir, userInfo } from "node:os";
import { join } from "node:path";

import { UsageError } from "../errors.ts";

const LOG_DIRECTORY_PREFIX = "mosaic-logs-";
/** In a directory whose job has ended: a job under way has none, and keeps its logs however old they are. */
const ENDED_MARKER = "ended";
const RETENTION_MS = 7 * 24 * 3_600_000;
/** A launcher that was killed leaves no mark; nothing was logged there for so long that its job is over, too. */
const ABANDONED_AFTER_MS = 4 * RETENTION_MS;
const RETENTION_BYTES = 1_000_000_000;

/** What is kept, in the words of the report. */
export const RETENTION_TEXT = "kept for a week";

/** The temporary log directory of a run. */
export const temporaryLogDirectory = (runId: string): string => join(tmpdir(), `${LOG_DIRECTORY_PREFIX}${runId}`);

/** For a log directory that cannot be used: it is the user's to mend, by what has chosen it. */
export function createLogDirError(
  { logDir }: { logDir: string | undefined },
  problem: string,
  error: unknown,
): UsageError {
  const { message } = error as Error;
  if (logDir !== undefined) return new UsageError(`--log-dir: ${problem}: ${message}`);
  return new UsageError(`log directory ${problem}: ${message}; set TMPDIR to a different directory, or pass --log-dir`);
}

/** How much is kept; a parameter so that a test needs neither a week nor a gigabyte. */
export interface RetentionLimits {
  readonly now?: number;
  readonly bytes?: number;
}

/**
 * Keeps the logs of a job that failed, and removes what exceeds the limits. Only jobs that fail do that: a start does not
 * wait for a walk over the logs of other jobs.
 */
export function applyLogRetention(directory: string, retention: RetentionLimits = {}): void {
  const { bytes = RETENTION_BYTES } = retention;
  try {
    truncateLogs(directory, bytes);
    writeFileSync(join(directory, ENDED_MARKER), "");
  } catch {
    // A directory that was taken away meanwhile needs no care.
  }
  removeOldLogs(retention);
}

/** Removes this user's temporary logs of jobs that ended a week ago, and the oldest beyond 1 GB. Never throws. */
export function removeOldLogs({ now = Date.now(), bytes = RETENTION_BYTES }: RetentionLimits = {}): void {
  let remainingBytes = bytes;
  for (const directory of logDirectoriesByAge()) {
    const ageMs = now - directory.modifiedAt;
    if (!directory.hasEnded && ageMs < ABANDONED_AFTER_MS) continue;
    remainingBytes -= directory.bytes;
    if (ageMs < RETENTION_MS && remainingBytes >= 0) continue;
    ignoreErrors(() => rmSync(directory.path, { recursive: true, force: true }));
  }
}

interface LogDirectory {
  readonly path: string;
  readonly hasEnded: boolean;
  readonly modifiedAt: number;
  readonly bytes: number;
}

/** The youngest first. Only directories of this user: any user may create names in a shared directory for temporary files. */
function logDirectoriesByAge(): readonly LogDirectory[] {
  const { uid } = userInfo();
  const names = ignoreErrors(() => readdirSync(tmpdir())) ?? [];
  const directories = names
    .filter((name) => name.startsWith(LOG_DIRECTORY_PREFIX))
    .flatMap((name) => {
      const path = join(tmpdir(), name);
      const stat = ignoreErrors(() => lstatSync(path));
      if (stat === undefined || !stat.isDirectory() || stat.uid !== uid) return [];
      const files = listLogFiles(path);
      const modifiedAt = Math.max(stat.mtimeMs, ...files.map((file) => file.modifiedAt));
      const hasEnded = files.some((file) => file.path === join(path, ENDED_MARKER));
      return [{ path, hasEnded, modifiedAt, bytes: files.reduce((sum, file) => sum + file.bytes, 0) }];
    });
  return directories.toSorted((a, b) => b.modifiedAt - a.modifiedAt);
}

interface LogFile {
  readonly path: string;
  readonly modifiedAt: number;
  readonly bytes: number;
}

function listLogFiles(dir: string): readonly LogFile[] {
  const names = ignoreErrors(() => readdirSync(dir)) ?? [];
  return names.flatMap((name) => {
    const path = join(dir, name);
    const stat = ignoreErrors(() => lstatSync(path));
    if (stat === undefined) return [];
    return stat.isDirectory() ? listLogFiles(path) : [{ path, modifiedAt: stat.mtimeMs, bytes: stat.size }];
  });
}

/** Cuts the longest files of a directory to their ends, until all of it has at most `maxBytes` bytes. */
function truncateLogs(dir: string, maxBytes: number): void {
  const files = listLogFiles(dir).toSorted((a, b) => a.bytes - b.bytes);
  let remainingBytes = maxBytes;
  for (const [i, { path, bytes }] of files.entries()) {
    const maxFileBytes = Math.floor(remainingBytes / (files.length - i));
    if (bytes > maxFileBytes) truncateToTail(path, bytes, maxFileBytes);
    remainingBytes -= Math.min(bytes, maxFileBytes);
  }
}

/** Copies the end of a file to its beginning: there may be no room for a second one. */
function truncateToTail(path: string, size: number, maxBytes: number): void {
  const fd = openSync(path, "r+");
  try {
    const truncationNotice = Buffer.from(
      `[the first ${size - maxBytes} bytes were removed: logs are limited to 1 GB]\n`,
    );
    const header = maxBytes > truncationNotice.length ? truncationNotice : Buffer.alloc(0);
    const buffer = Buffer.alloc(1 << 20);
    const tailBytes = maxBytes - header.length;
    for (let copiedBytes = 0; copiedBytes < tailBytes; ) {
      const count = readSync(
        fd,
        buffer,
        0,
        Math.min(buffer.length, tailBytes - copiedBytes),
        size - tailBytes + copiedBytes,
      );
      if (count === 0) break;
      writeSync(fd, buffer, 0, count, header.length + copiedBytes);
      copiedBytes += count;
    }
    writeSync(fd, header, 0, header.length, 0);
    ftruncateSync(fd, maxBytes);
  } finally {
    closeSync(fd);
  }
}

function ignoreErrors<T>(operation: () => T): T | undefined {
  try {
    return operation();
  } catch {
    return undefined;
  }
}
