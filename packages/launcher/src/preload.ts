/**
 * Loaded into every Node rank before the user's first module, by `node --require`. Three jobs:
 *
 * 1. Output is written before it is forgotten. Node's pipes are asynchronous: a rank that prints 3 MB and throws would
 *    deliver a fraction. Blocking pipes deliver all; the launcher always drains them.
 * 2. What is thrown is written down: the uncaught error, its stack and causes, as JSON in TORCHELASTIC_ERROR_FILE. Where
 *    Node prints it next, a mark goes before it, so that the launcher shows the error once.
 * 3. No orphans. The launcher holds the other end of a socket; when it ends, a thread kills this process group, also
 *    while the main thread is blocked.
 *
 * Only the rank itself does this: the variable that reports so is removed, so children started with the same execArgv
 * and environment do not.
 */
import { writeFileSync, writeSync } from "node:fs";
import { isMainThread, Worker } from "node:worker_threads";
import { uncaughtMarker } from "./output/lines.ts";
import { errorRecord } from "./report/error-record.ts";

const PARENT_PIPE_VARIABLE = "MOSAIC_PARENT_PIPE_FD";
const RUN_ID_VARIABLE = "MOSAIC_RUN_ID";

/** Runs in its own thread with its own event loop, which terminates at once when the rank exits by itself. */
const parentWatcherScript = `
  const { Socket } = require("node:net");
  const end = () => {
    try { process.kill(-process.pid, "SIGKILL"); } catch { process.kill(process.pid, "SIGKILL"); }
  };
  const { fd } = require("node:worker_threads").workerData;
  new Socket({ fd, readable: true, writable: false }).on("end", end).on("error", end).resume();
`;

function makeSynchronous(stream: NodeJS.WriteStream): void {
  // A private handle: where it is missing, Node writes as it always did.
  const { _handle: handle } = stream as { _handle?: { setBlocking?(blocking: boolean): void } };
  handle?.setBlocking?.(true);
}

function recordErrors(path: string, runId: string | undefined): void {
  process.on("uncaughtExceptionMonitor", (error) => {
    try {
      writeFileSync(path, JSON.stringify(errorRecord(error)));
      // A program that handles its uncaught errors goes on, and prints what it likes.
      const doesNodePrintError =
        process.listenerCount("uncaughtException") === 0 && !process.hasUncaughtExceptionCaptureCallback();
      if (doesNodePrintError && runId !== undefined) writeSync(2, uncaughtMarker(runId));
    } catch {
      // A full disk must not hide the error itself, which Node prints next.
    }
  });
}

function exitWithLauncher(fd: number): void {
  try {
    // No execArgv: the user's loaders have no business in this thread.
    const watcher = new Worker(parentWatcherScript, {
      eval: true,
      workerData: { fd },
      execArgv: [],
      name: "mosaic-parent-watcher",
    });
    watcher.on("error", () => {});
    watcher.unref();
  } catch {
    // Threads may be forbidden (--permission); the launcher's other layers remain.
  }
}

const parentPipeFd = process.env[PARENT_PIPE_VARIABLE];
if (isMainThread && parentPipeFd !== undefined) {
  delete process.env[PARENT_PIPE_VARIABLE];
  exitWithLauncher(Number(parentPipeFd));
  makeSynchronous(process.stdout);
  makeSynchronous(process.stderr);
  const errorFile = process.env.TORCHELASTIC_ERROR_FILE;
  if (errorFile !== undefined) recordErrors(errorFile, process.env[RUN_ID_VARIABLE]);
}
