/**
 * Loaded into every Node rank before the user's first module, by `node --require`. It has three tasks:
 *
 * 1. Complete output. Node's pipes are asynchronous: a rank that prints 3 MB and throws would deliver only a part.
 *    Blocking pipes deliver everything, and the launcher always drains them.
 * 2. Error records. An uncaught error is written with its stack and causes to TORCHELASTIC_ERROR_FILE, as JSON. If Node
 *    prints the error next, a marker is written before it, so that the launcher shows the error once. The record of an
 *    error that the program handles is kept only if the program exits because of it.
 * 3. No orphans. The launcher holds the other end of a socket. When the launcher exits, a thread kills this process
 *    group, even while the main thread is blocked.
 *
 * Only the rank itself does this. The variable that marks a rank's process is removed, so that child processes with the
 * same execArgv and environment skip these tasks.
 */
import { readFileSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { isMainThread, Worker } from "node:worker_threads";
import { uncaughtMarker } from "./output/lines.ts";
import { errorRecord } from "./report/error-record.ts";

const PARENT_PIPE_VARIABLE = "MOSAIC_PARENT_PIPE_FD";
const RUN_ID_VARIABLE = "MOSAIC_RUN_ID";

/** Runs in a thread with its own event loop. The thread terminates at once when the rank exits by itself. */
const parentWatcherScript = `
  const { Socket } = require("node:net");
  const end = () => {
    try { process.kill(-process.pid, "SIGKILL"); } catch { process.kill(process.pid, "SIGKILL"); }
  };
  const { fd } = require("node:worker_threads").workerData;
  new Socket({ fd, readable: true, writable: false }).on("end", end).on("error", end).resume();
`;

function makeSynchronous(stream: NodeJS.WriteStream): void {
  // The handle is private to Node. Without it, output remains asynchronous.
  const { _handle: handle } = stream as { _handle?: { setBlocking?(blocking: boolean): void } };
  handle?.setBlocking?.(true);
}

/** Time in which a program that handles an uncaught error may exit with a code other than 0 because of it. */
const MAX_HANDLING_MS = 10_000;

function recordErrors(path: string, runId: string | undefined): void {
  let handledError: { readonly record: string; readonly time: number } | undefined;
  process.on("uncaughtExceptionMonitor", (error) => {
    try {
      const record = JSON.stringify(errorRecord(error));
      writeFileSync(path, record);
      const doesNodePrintError =
        process.listenerCount("uncaughtException") === 0 && !process.hasUncaughtExceptionCaptureCallback();
      if (!doesNodePrintError) {
        handledError = { record, time: performance.now() };
        setImmediate(() => removeRecord(path, record));
      } else if (runId !== undefined) writeSync(2, uncaughtMarker(runId));
    } catch {
      // A full disk must not hide the error itself, which Node prints next.
    }
  });
  process.on("exit", (code) => {
    if (code === 0 || handledError === undefined || performance.now() - handledError.time > MAX_HANDLING_MS) return;
    try {
      writeFileSync(path, handledError.record, { flag: "wx" });
    } catch {
      // The record still exists, or the program has written its own.
    }
  });
}

/** Removes the record of an error that the program has handled, unless the program has replaced it. */
function removeRecord(path: string, record: string): void {
  try {
    if (readFileSync(path, "utf8") === record) rmSync(path);
  } catch {
    // The file may have been removed meanwhile.
  }
}

function exitWithLauncher(fd: number): void {
  try {
    // No execArgv: the user's loaders must not be loaded in this thread.
    const watcher = new Worker(parentWatcherScript, {
      eval: true,
      workerData: { fd },
      execArgv: [],
      name: "mosaic-parent-watcher",
    });
    watcher.on("error", () => {});
    watcher.unref();
  } catch {
    // Threads may be forbidden (--permission). The launcher's other protections against orphans remain.
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
