import { randomUUID } from "node:crypto";
import { readdir, rm } from "node:fs/promises";
import { hostname } from "node:os";
import { basename, dirname, join } from "node:path";

// A file is written as a draft beside its place. Its name states which process of which host writes it, so that what a killed
// one left is distinguished from what another is still at.

/** Drafts that this process is at. */
const own = new Set<string>();

const prefixOf = (path: string): string => `.${basename(path)}.${hostname().replaceAll(/[^\w-]/g, "_")}.`;

/** A new draft of a file; call `forget` when it is in its place, or gone. */
export function draftOf(path: string): { readonly draft: string; forget(): void } {
  const draft = join(dirname(path), `${prefixOf(path)}${process.pid}.${randomUUID()}.part`);
  own.add(draft);
  return { draft, forget: () => own.delete(draft) };
}

/** Removes the drafts of a file that processes of this host left when they were killed. */
export async function removeLeftDrafts(path: string): Promise<void> {
  const prefix = prefixOf(path);
  for (const name of await readdir(dirname(path))) {
    if (!name.startsWith(prefix)) continue;
    const pid = Number(/^(\d+)\.[0-9a-f-]{36}\.part$/.exec(name.slice(prefix.length))?.[1] ?? Number.NaN);
    const draft = join(dirname(path), name);
    if (!Number.isNaN(pid) && !isAt(pid, draft)) await rm(draft, { force: true });
  }
}

/** Whether a process may still be at a draft. */
function isAt(pid: number, draft: string): boolean {
  // A container's first process has the same number each time.
  if (pid === process.pid) return own.has(draft);
  try {
    return process.kill(pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== "ESRCH";
  }
}
