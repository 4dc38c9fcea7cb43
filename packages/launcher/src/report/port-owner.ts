import { readdirSync, readFileSync, readlinkSync } from "node:fs";

/**
 * Returns the process that listens on a local TCP port, as `pid 812 (node)`; undefined if it cannot be determined.
 * Linux only.
 */
export function findPortOwner(port: number): string | undefined {
  const inodes = new Set([
    ...findListeningInodes("/proc/net/tcp", port),
    ...findListeningInodes("/proc/net/tcp6", port),
  ]);
  if (inodes.size === 0) return undefined;
  for (const pid of listDirectory("/proc").filter((name) => /^\d+$/.test(name))) {
    for (const fd of listDirectory(`/proc/${pid}/fd`)) {
      const target = linkTarget(`/proc/${pid}/fd/${fd}`);
      const inode = /^socket:\[(\d+)\]$/.exec(target)?.[1];
      if (inode !== undefined && inodes.has(inode)) return `pid ${pid} (${readOrEmpty(`/proc/${pid}/comm`).trim()})`;
    }
  }
  return undefined;
}

/**
 * Returns the inodes of sockets in state LISTEN (0A) on `port`. Columns: sl local_address rem_address st … uid timeout
 * inode.
 */
function findListeningInodes(table: string, port: number): readonly string[] {
  const portHex = port.toString(16).toUpperCase().padStart(4, "0");
  return readOrEmpty(table)
    .split("\n")
    .map((row) => row.trim().split(/\s+/))
    .filter((columns) => columns[1]?.endsWith(`:${portHex}`) && columns[3] === "0A")
    .map((columns) => columns[9] as string);
}

function listDirectory(path: string): readonly string[] {
  try {
    return readdirSync(path);
  } catch {
    return [];
  }
}

/** Returns the text of a file; an empty text if it cannot be read. */
export function readOrEmpty(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}

function linkTarget(path: string): string {
  try {
    return readlinkSync(path);
  } catch {
    return "";
  }
}
