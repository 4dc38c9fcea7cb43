import { once } from "node:events";
import { linkSync, renameSync, statSync, unlinkSync } from "node:fs";
import { connect, type Server } from "node:net";
import { dirname, join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";

/** What `sockaddr_un` holds, without its zero. */
export const MAX_PATH_BYTES = 107;

/** A path that a server of this process listens at. */
export interface SocketFile {
  /** Takes the name away, unless another process has taken it since. Connections remain. */
  unlink(): void;
  /** Gives the name back after `hide`. Rejects with EADDRINUSE when another process has taken it. */
  restore(): Promise<void>;
  /** Removes every name. */
  release(): void;
}

let temporaryPathCount = 0;

/**
 * Listens at `path`, in place of a socket whose process is gone. Rejects with EADDRINUSE where a process listens.
 *
 * The socket is bound under a name of its own and then linked: a link is made by one process only, and libuv, which
 * removes the name that was bound, cannot remove a successor's.
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

/** Whether the new name was made; false if it exists. */
function tryLink(temporaryPath: string, path: string): boolean {
  try {
    linkSync(temporaryPath, path);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return false;
    throw error;
  }
}

/** Removes a socket that no process listens at. Throws EADDRINUSE where one does. */
async function removeStaleSocket(path: string): Promise<void> {
  const staleInode = getInode(path);
  for (let attempt = 0; attempt < 2; attempt++) {
    if (await isListening(path))
      throw Object.assign(new Error(`an agent already listens at ${path}`), { code: "EADDRINUSE" });
    // Between bind and listen a socket looks dead.
    await delay(20);
  }
  const backupPath = `${path}.${process.pid}`;
  try {
    renameSync(path, backupPath);
  } catch {
    return;
  }
  // Another process may have done the same, and listen there by now.
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
