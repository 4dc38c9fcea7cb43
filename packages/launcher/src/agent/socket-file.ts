import { once } from "node:events";
import { linkSync, renameSync, statSync, unlinkSync } from "node:fs";
import { connect, type Server } from "node:net";
import { dirname, join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";

/** What `sockaddr_un` holds, without its zero. */
export const LONGEST_PATH = 107;

/** A path that a server of this process listens at. */
export interface SocketClaim {
  /** Takes the name away, unless another process has taken it since. Connections remain. */
  release(): void;
  /** Gives the name back after `release`. Throws EADDRINUSE when another process has taken it. */
  renew(): Promise<void>;
}

let temporaries = 0;

/**
 * Listens at `path`, in place of a socket whose process is gone. Rejects with EADDRINUSE where a process listens.
 *
 * The socket is bound under a name of its own and then linked: a link is made by one process only, and libuv, which
 * removes the name that was bound, cannot remove a successor's.
 */
export async function claimSocket(server: Server, path: string): Promise<SocketClaim> {
  if (Buffer.byteLength(path) > LONGEST_PATH)
    throw new RangeError(`the path of an agent's socket has at most ${LONGEST_PATH} bytes: ${path}`);
  const bound = join(dirname(path), `.${process.pid}-${temporaries++}`);
  server.listen({ path: bound, backlog: 4096 });
  await once(server, "listening");
  const { ino } = statSync(bound);
  const release = (): void => {
    if (inodeOf(path) === ino) unlinkSync(path);
  };
  const renew = async (): Promise<void> => {
    for (;;) {
      try {
        return linkSync(bound, path);
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
        await replaceDead(path, error as Error);
      }
    }
  };
  try {
    await renew();
  } catch (error) {
    server.close();
    throw error;
  }
  return { release, renew };
}

/** Removes a socket that nobody listens at. Throws `taken` where somebody does. */
async function replaceDead(path: string, taken: Error): Promise<void> {
  const tested = inodeOf(path);
  for (let attempt = 0; attempt < 2; attempt++) {
    if (await isListening(path)) throw Object.assign(taken, { code: "EADDRINUSE" });
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
  if (inodeOf(aside) !== tested) linkSync(aside, path);
  unlinkSync(aside);
}

function inodeOf(path: string): number | undefined {
  return statSync(path, { throwIfNoEntry: false })?.ino;
}

function isListening(path: string): Promise<boolean> {
  const socket = connect({ path });
  return new Promise((resolve) => {
    socket.on("connect", () => resolve(true)).on("error", () => resolve(false));
  }).finally(() => socket.destroy()) as Promise<boolean>;
}
