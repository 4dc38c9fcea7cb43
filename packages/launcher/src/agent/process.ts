/**
 * An agent in a process of its own, for hosts without a launcher: `node agent-process.js SOCKET`. It prints `ready` once
 * ranks can connect, `taken` where another agent listens already, and ends with its last rank. The secret, if there is one,
 * is read from the file MOSAIC_TOKEN_FILE.
 */
import { readFileSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import { Agent } from "./agent.ts";

/** Until the first hello of a rank, this process ends after so long, or with the process that started it. */
const HELLO_TIMEOUT_MS = 60_000;
/** Ranks that found the socket while it had its name are connected by then. */
const DRAIN_MS = 100;

// The parent process reads until this one is ready, and no longer.
process.stdout.on("error", () => {});
process.stderr.on("error", () => {});

async function serve(path: string, tokenFile: string | undefined): Promise<void> {
  const secret = tokenFile === undefined ? "" : readFileSync(tokenFile, "utf8").trim();
  let isAwaited = true;
  const agent = await Agent.listen({
    ...{ path, secret },
    onIdle: () => void (isAwaited && !agent.isUsed ? undefined : closeIfUnused(agent)),
  });
  const stopWaiting = (): void => {
    isAwaited = false;
    void closeIfUnused(agent);
  };
  setTimeout(stopWaiting, HELLO_TIMEOUT_MS);
  // Its end is the end of the process that started this one.
  process.stdin.on("end", stopWaiting).on("error", stopWaiting).resume();
  process.on("exit", () => void agent.close());
  for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"] as const) process.on(signal, () => process.exit(0));
  process.stdout.write("ready\n");
}

async function closeIfUnused(agent: Agent): Promise<void> {
  if (agent.connections > 0) return;
  // The name goes first: a rank that looks for an agent from here on starts another.
  agent.unlink();
  await delay(DRAIN_MS);
  if (agent.connections === 0) process.exit(0);
  // It cannot have its name back where another agent has taken it; its ranks are served all the same.
  await agent.relink().catch(() => {});
}

const [path] = process.argv.slice(2);
try {
  if (path === undefined) throw new TypeError("expected the path of a socket");
  await serve(path, process.env.MOSAIC_TOKEN_FILE);
} catch (error) {
  const { code, message } = error as NodeJS.ErrnoException;
  if (code === "EADDRINUSE") process.stdout.write("taken\n");
  else {
    process.stderr.write(`agent at ${path}: ${message}\n`);
    process.exitCode = 1;
  }
}
