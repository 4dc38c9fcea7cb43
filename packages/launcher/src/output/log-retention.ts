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
import { ignoreErrors } from "../ignore-errors.ts";

const LOG_DIRECTORY_PREFIX = "mosaic-logs-";
/**
 * File that marks the directory of a job that has ended. Without it, logs are kept regardless of their age, up to a
 * limit.
 */
const ENDED_MARKER = "ended";
const RETENTION_MS = 7 * 24 * 3_600_000;
/**
 * A killed launcher leaves no marker. A directory without log output for this time is treated as that of an ended job.
 */
const ABANDONED_AFTER_MS = 4 * RETENTION_MS;
const RETENTION_BYTES = 1_000_000_000;

/** Description of the retention time, for reports. */
export const RETENTION_TEXT = "kept for a week";

/** Returns the temporary log directory of a run. */
export const temporaryLogDirectory = (runId: string): string => join(tmpdir(), `${LOG_DIRECTORY_PREFIX}${runId}`);

/**
 * Returns the error for a log directory that cannot be used. It names the option or variable that the user can change.
 */
export function createLogDirError(
  { logDir }: { logDir: string | undefined },
  problem: string,
  error: unknown,
): UsageError {
  const { message } = error as Error;
  if (logDir !== undefined) return new UsageError(`--log-dir: ${problem}: ${message}`);
  return new UsageError(`log directory ${problem}: ${message}; set TMPDIR to a different directory, or pass --log-dir`);
}

/** Limits of retention. A parameter, so that tests need neither a week nor a gigabyte. */
export interface RetentionLimits {
  readonly now?: number;
  readonly bytes?: number;
}

/**
 * Keeps the logs of a job that failed, and removes logs that exceed the limits. Only failed jobs do so, so that the
 * start of a job does not have to scan the logs of other jobs.
 */
export function applyLogRetention(directory: string, retention: RetentionLimits = {}): void {
  const { bytes = RETENTION_BYTES } = retention;
  try {
    truncateLogs(directory, bytes);
    writeFileSync(join(directory, ENDED_MARKER), "");
  } catch {
    // The directory may have been removed meanwhile.
  }
  removeOldLogs(retention);
}

/**
 * Removes this user's temporary logs of jobs that ended more than a week ago, and the oldest ones beyond 1 GB. Never
 * throws.
 */
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

/**
 * Returns the log directories of this user, the newest first. In a shared temporary directory, other users may have
 * created some.
 */
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

/**
 * Truncates the longest files of a directory to their last bytes, so that all files have at most `maxBytes` bytes in
 * total.
 */
function truncateLogs(dir: string, maxBytes: number): void {
  const files = listLogFiles(dir).toSorted((a, b) => a.bytes - b.bytes);
  let remainingBytes = maxBytes;
  for (const [i, { path, bytes }] of files.entries()) {
    const maxFileBytes = Math.floor(remainingBytes / (files.length - i));
    if (bytes > maxFileBytes) truncateToTail(path, bytes, maxFileBytes);
    remainingBytes -= Math.min(bytes, maxFileBytes);
  }
}

/** Moves the end of a file to its beginning in place, because the disk may have no space for a second file. */
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
