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

let temporaryCount = 0;

/**
 * Listens at `path`, in place of a socket whose process is gone. Rejects with EADDRINUSE where a process listens.
 *
 * The socket is bound under a name of its own and then linked: a link is made by one process only, and libuv, which
 * removes the name that was bound, cannot remove a successor's.
 */
export async function bindSocketFile(server: Server, path: string): Promise<SocketFile> {
  if (Buffer.byteLength(path) > MAX_PATH_BYTES)
    throw new RangeError(`expected an agent socket path of at most ${MAX_PATH_BYTES} bytes, received ${path}`);
  const bound = join(dirname(path), `.${process.pid}-${temporaryCount++}`);
  server.listen({ path: bound, backlog: 4096 });
  await once(server, "listening");
  const { ino } = statSync(bound);
  const isOurs = (name: string): boolean => getInode(name) === ino;
  const claim: SocketFile = {
    unlink() {
      if (isOurs(path)) renameSync(path, bound);
    },
    async restore() {
      while (!tryLink(bound, path)) await removeStaleSocket(path);
      unlinkSync(bound);
    },
    release() {
      for (const name of [path, bound]) if (isOurs(name)) unlinkSync(name);
    },
  };
  try {
    await claim.restore();
  } catch (error) {
    claim.release();
    server.close();
    throw error;
  }
  return claim;
}

/** Whether the new name was made; false if it exists. */
function tryLink(bound: string, path: string): boolean {
  try {
    linkSync(bound, path);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return false;
    throw error;
  }
}

/** Removes a socket that no process listens at. Throws EADDRINUSE where one does. */
async function removeStaleSocket(path: string): Promise<void> {
  const tested = getInode(path);
  for (let attempt = 0; attempt < 2; attempt++) {
    if (await isListening(path))
      throw Object.assign(new Error(`an agent already listens at ${path}`), { code: "EADDRINUSE" });
    // Between bind and listen a socket looks dead.
    await delay(20);
  }
  const aside = `${path}.${process.pid}`;
  try {
    renameSync(path, aside);
  } catch {
    return;
  }
  // Another process may have done the same, and listen there by now.
  if (getInode(aside) !== tested) linkSync(aside, path);
  unlinkSync(aside);
}

function getInode(path: string): number | undefined {
  return statSync(path, { throwIfNoEntry: false })?.ino;
}

function isListening(path: string): Promise<boolean> {
  const socket = connect({ path });
  const answer = new Promise<boolean>((resolve) => {
    socket.on("connect", () => resolve(true)).on("error", () => resolve(false));
  });
  return answer.finally(() => socket.destroy());
}
