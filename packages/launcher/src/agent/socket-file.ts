import { once } from "node:events";
import { linkSync, renameSync, statSync, unlinkSync } from "node:fs";
import { connect, type Server } from "node:net";
import { dirname, join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";

/** Maximum length of a path in `sockaddr_un`, without the terminating zero. */
const MAX_PATH_BYTES = 107;

/** The path of a Unix socket at which a server of this process listens. */
export interface SocketFile {
  /** Removes the path, unless another process has taken it. Connections remain open. */
  unlink(): void;
  /** Restores the path after `unlink`. Rejects with EADDRINUSE if another process listens there. */
  restore(): Promise<void>;
  /** Removes the path and the temporary path. */
  release(): void;
}

let temporaryPathCount = 0;

/**
 * Listens at `path`. A socket file whose process has exited is replaced. Rejects with EADDRINUSE if a process listens
 * there.
 *
 * The socket is bound to a temporary path and then linked to `path`. Only one process can create the link, and libuv,
 * which removes the path that was bound, cannot remove the socket file of a later process.
 */
export async function bindSocketFile(server: Server, path: string): Promise<SocketFile> {
  if (Buffer.byteLength(path) > MAX_PATH_BYTES)
    throw new RangeError(`expected an agent socket path of at most ${MAX_PATH_BYTES} bytes, received ${path}`);
  const temporaryPath = join(dirname(path), `.${process.pid}-${temporaryPathCount++}`);
  server.listen({ path: temporaryPath, backlog: 4096 });
  await once(server, "listening");
  const { ino } = statSync(temporaryPath);
  const isOwnInode = (name: string): boolean => getInode(name) === ino;
  const socketFile: SocketFile = {
    unlink() {
      if (isOwnInode(path)) renameSync(path, temporaryPath);
    },
    async restore() {
      while (!tryLink(temporaryPath, path)) await removeStaleSocket(path);
      unlinkSync(temporaryPath);
    },
    release() {
      for (const name of [path, temporaryPath]) if (isOwnInode(name)) unlinkSync(name);
    },
  };
  try {
    await socketFile.restore();
  } catch (error) {
    socketFile.release();
    server.close();
    throw error;
  }
  return socketFile;
}

/** Creates the link and returns true, or returns false if `path` exists. */
function tryLink(temporaryPath: string, path: string): boolean {
  try {
    linkSync(temporaryPath, path);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return false;
    throw error;
  }
}

/** Removes a socket file at which no process listens. Throws EADDRINUSE if a process listens. */
async function removeStaleSocket(path: string): Promise<void> {
  const staleInode = getInode(path);
  for (let attempt = 0; attempt < 2; attempt++) {
    if (await isListening(path))
      throw Object.assign(new Error(`an agent already listens at ${path}`), { code: "EADDRINUSE" });
    // A socket between bind and listen refuses connections, so a second try is needed.
    await delay(20);
  }
  const backupPath = `${path}.${process.pid}`;
  try {
    renameSync(path, backupPath);
  } catch {
    return;
  }
  // Another process may have replaced the stale socket and listen at this path by now.
  if (getInode(backupPath) !== staleInode) linkSync(backupPath, path);
  unlinkSync(backupPath);
}

function getInode(path: string): number | undefined {
  return statSync(path, { throwIfNoEntry: false })?.ino;
}

function isListening(path: string): Promise<boolean> {
  const socket = connect({ path });
  const connectResult = new Promise<boolean>((resolve) => {
    socket.on("connect", () => resolve(true)).on("error", () => resolve(false));
  });
  return connectResult.finally(() => socket.destroy());
}
