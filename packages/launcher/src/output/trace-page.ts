import { once } from "node:events";
import { accessSync, constants, createWriteStream, type WriteStream } from "node:fs";
import { readdir, readFile, rename } from "node:fs/promises";
import { join } from "node:path";
import type { Assignment } from "../coordinator.ts";
import { UsageError } from "../errors.ts";
import type { EventBody } from "../job.ts";
import { createDirectory } from "./rank-log.ts";

/** Returns the directory for the traces of an attempt's ranks. */
export function attemptTraceDirectory(
  traceDir: string,
  { runId, attempt }: Pick<Assignment, "runId" | "attempt">,
): string {
  return join(traceDir, runId, `attempt_${attempt}`);
}

/** Creates the directory for the traces of all runs. Throws a UsageError if it cannot be created or written. */
export function makeTraceDirectory(traceDir: string): void {
  try {
    createDirectory(traceDir);
    accessSync(traceDir, constants.W_OK | constants.X_OK);
  } catch (error) {
    throw new UsageError(`--trace: ${traceDir} cannot be written: ${(error as Error).message}`, { cause: error });
  }
}

/** Placeholder for the traces in the viewer.html that ranks write. */
const DATA_MARKER = "<!-- data -->";

/**
 * Writes a page with the traces of an attempt: `viewer.html`, which a rank has written, with one script element per
 * `rank-N.json`. The content of the traces is interpreted only by the page. If nodes share the directory, the last one
 * to end writes the page of all.
 */
export async function writeTracePage(traceDir: string, assignment: Assignment): Promise<EventBody> {
  const directory = attemptTraceDirectory(traceDir, assignment);
  try {
    const files = await listFiles(directory);
    const names = files.filter((name) => /^rank-\d+\.json$/.test(name));
    if (names.length === 0)
      throw new Error("no rank wrote a trace; close the context of @mosaic/attention on each rank to write its trace");
    const viewerPath = join(directory, "viewer.html");
    if (!files.includes("viewer.html"))
      throw new Error(
        `expected ${viewerPath}, which a rank writes after its trace, received ${names.length} traces without it; ` +
          "check that no rank was killed while it closed its context",
      );
    const [head = "", tail] = (await readFile(viewerPath, "utf8")).split(DATA_MARKER);
    if (tail === undefined) throw new Error(`${viewerPath} has no placeholder ${DATA_MARKER}`);
    const pagePath = join(traceDir, assignment.runId, "index.html");
    await writeParts(`${pagePath}.${process.pid}.partial`, generateParts(directory, { names, head, tail }));
    await rename(`${pagePath}.${process.pid}.partial`, pagePath);
    return { type: "trace", directory, ranks: names.length, page: pagePath };
  } catch (error) {
    return { type: "trace", directory, ranks: 0, reason: (error as Error).message };
  }
}

/** Returns the names of the files in a directory, which the first rank that writes a trace creates. */
async function listFiles(directory: string): Promise<readonly string[]> {
  try {
    return await readdir(directory);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return [];
    throw error;
  }
}

/**
 * Yields the parts of the page with one trace in memory at a time: the traces of a thousand ranks have hundreds of
 * megabytes.
 */
async function* generateParts(
  directory: string,
  { names, head, tail }: { readonly names: readonly string[]; readonly head: string; readonly tail: string },
): AsyncGenerator<string, void, undefined> {
  yield head;
  for (const name of names) {
    const text = await readFile(join(directory, name), "utf8");
    // In JSON `<` occurs only in strings, where it may be escaped. Then no text in a trace can end the script element.
    yield `<script type="application/json" class="trace-data">${text.replaceAll("<", "\\u003c")}</script>\n`;
  }
  yield tail;
}

async function writeParts(path: string, chunks: AsyncIterable<string>): Promise<void> {
  const stream: WriteStream = createWriteStream(path);
  const closeEvent = new Promise<void>((done, fail) => {
    stream.once("close", done);
    stream.once("error", fail);
  });
  for await (const chunk of chunks) {
    if (!stream.write(chunk)) await Promise.race([closeEvent, once(stream, "drain")]);
  }
  stream.end();
  await closeEvent;
}
