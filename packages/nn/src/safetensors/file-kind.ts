/** The part of Node's `Stats` that `describeOtherFile` uses, so that declarations do not depend on Node's types. */
interface FileStats {
  isFile(): boolean;
  isDirectory(): boolean;
  isFIFO(): boolean;
  isSocket(): boolean;
  isCharacterDevice(): boolean;
}

/** Returns undefined for a regular file, and otherwise what it is, for error messages: "a directory", "a FIFO". */
export function describeOtherFile(stats: FileStats): string | undefined {
  if (stats.isFile()) return undefined;
  if (stats.isDirectory()) return "a directory";
  if (stats.isFIFO()) return "a FIFO";
  if (stats.isSocket()) return "a socket";
  return stats.isCharacterDevice() ? "a character device" : "a block device";
}
