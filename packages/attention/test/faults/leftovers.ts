import { readdirSync, readFileSync } from "node:fs";

/** The resources of ranks when the fault starts: inodes of sockets and of shared memory segments. */
export interface HeldResources {
  readonly sockets: readonly string[];
  readonly segments: readonly string[];
}

/**
 * Lists the remaining resources of a run: processes by the mark in their environment, sockets and segments by inode.
 */
export function listLeftovers(mark: string, { sockets, segments }: HeldResources): readonly string[] {
  const openInodes = new Set(["unix", "tcp", "tcp6"].flatMap(listInodes));
  return [
    ...listProcessIds()
      .filter((pid) => readOrEmpty(`/proc/${pid}/environ`).includes(mark))
      .map((pid) => `process ${pid}: ${readOrEmpty(`/proc/${pid}/cmdline`).replaceAll("\0", " ")}`),
    ...sockets.filter((inode) => openInodes.has(inode)).map((inode) => `socket ${inode}`),
    ...listProcessIds().flatMap((pid) => {
      const memoryMaps = readOrEmpty(`/proc/${pid}/maps`)
        .split("\n")
        .filter((line) => line.includes("memfd:mosaic"))
        .map((line) => line.split(/\s+/)[4]!);
      return segments
        .filter((inode) => memoryMaps.includes(inode))
        .map((inode) => `segment ${inode} in process ${pid}`);
    }),
    ...readdirSync("/dev/shm")
      .filter((name) => name.includes(mark) || name.startsWith("mosaic"))
      .map((name) => `/dev/shm/${name}`),
  ];
}

const listProcessIds = (): readonly string[] => readdirSync("/proc").filter((name) => /^\d+$/.test(name));

function listInodes(protocol: string): readonly string[] {
  const column = protocol === "unix" ? 6 : 9;
  const rows = readOrEmpty(`/proc/net/${protocol}`).split("\n").slice(1);
  return rows.map((row) => row.trim().split(/\s+/)[column] ?? "");
}

/** Reads a file. Returns an empty string if the process has exited or belongs to another user. */
function readOrEmpty(path: string): string {
  try {
    return readFileSync(path, "latin1");
  } catch {
    return "";
  }
}
