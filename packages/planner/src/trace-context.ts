import { mkdir, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import {
  checkContext,
  ClosedError,
  type Context,
  defineOptions,
  formatValue,
  option,
  OptionError,
  type OptionsOf,
  runOnAllRanks,
  type TraceEvent,
} from "@mosaic/core";
import { sumComputeAndWaitSeconds } from "./draw/intervals.ts";
import { type ClockOffset, clockOffset } from "./time/clock-offset.ts";
import { synchronizationEventNames } from "./time/synchronization.ts";
import type { MemorySample } from "./time/timeline.ts";
import { type RankTraceData, traceFormat } from "./view/data.ts";
import { encodeMemory, encodeRank } from "./view/encode.ts";
import { viewerTemplate } from "./viewer-html.ts";

export const traceContextOptions = defineOptions("traceContext", {
  /** Directory for the file of each rank; created if it does not exist. */
  directory: option.custom("a path", (value): value is string => typeof value === "string" && value !== ""),
  /**
   * Seconds after which the trace ends if the program has not ended it. Its events are held in memory until then.
   * Default 60.
   */
  seconds: option.number({ above: 0, max: 2_000_000, default: 60 }),
  /** Milliseconds between samples of memory. Default 20. */
  memoryInterval: option.number({ above: 0, max: 60_000, default: 20 }),
});
/** How a program is traced. */
export type TraceContextOptions = OptionsOf<typeof traceContextOptions>;

/** A running trace. */
export interface ContextTrace {
  /** Ends the trace and writes its file, on the first call. Resolves to the path of the file. */
  stop(): Promise<string>;
}

/**
 * Begins to trace this rank: the kernels and collectives that it runs, and the memory that it allocates. `stop()`
 * writes `rank-N.json` into the directory, and beside it the viewer's page without data, `viewer.html`, which reads
 * such files. Collective: every rank calls it while no other work runs, because the clocks of hosts are compared. If
 * the program itself calls `ctx.startTrace()`, what was traced until then is discarded.
 *
 * @example
 * ```ts
 * import { existsSync, mkdtempSync } from "node:fs";
 * import { tmpdir } from "node:os";
 * import { init, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { traceContext } from "@mosaic/planner";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * const trace = await traceContext(ctx, { directory: mkdtempSync(`${tmpdir()}/trace-`) });
 * using x = randn(ctx, [64, 64]);
 * using y = x.add(x);
 * await y.read();
 * existsSync(await trace.stop()); // => true
 * ```
 * @throws OptionError for unknown options, invalid values, or a directory that cannot be created or written.
 */
export async function traceContext(ctx: Context, options: TraceContextOptions): Promise<ContextTrace> {
  checkContext("traceContext", ctx);
  const { directory, seconds, memoryInterval } = traceContextOptions.parse(options);
  await runOnAllRanks(ctx, "traceContext", () => makeDirectory(directory));
  const clock = await clockOffset(ctx);
  const memory: MemorySample[] = [];
  const sampleMemory = (): void => {
    try {
      memory.push({ time: Number(process.hrtime.bigint()) / 1e9, bytes: ctx.device.memory().allocated });
    } catch (error) {
      // There is nothing more to trace in a context that was closed without stop().
      if (!(error instanceof ClosedError)) throw error;
      clearInterval(samplingTimer);
      clearTimeout(timeLimitTimer);
    }
  };
  ctx.startTrace();
  const startTime = performance.now();
  const samplingTimer = setInterval(sampleMemory, memoryInterval).unref();
  let writePromise: Promise<string> | undefined;
  const stopAndWrite = async (note?: string): Promise<string> => {
    clearInterval(samplingTimer);
    clearTimeout(timeLimitTimer);
    sampleMemory();
    const events = await ctx.stopTrace();
    const clockAtStop = addDrift(clock, (performance.now() - startTime) / 1000);
    return writeTrace(directory, encodeTrace(ctx, { events, memory, clock: clockAtStop, note }));
  };
  const timeLimitTimer = setTimeout(() => {
    writePromise ??= stopAndWrite(`Trace truncated after ${seconds} s: the program was still running.`);
    // A file that cannot be written is reported by stop().
    writePromise.catch(() => {});
  }, seconds * 1000).unref();
  sampleMemory();
  return { stop: () => (writePromise ??= stopAndWrite()) };
}

/** Creates the directory, and writes a file to it and removes it, so that a failure is reported before the program runs. */
async function makeDirectory(directory: string): Promise<void> {
  try {
    await mkdir(directory, { recursive: true });
    const path = temporaryPath(join(directory, "probe"));
    await writeFile(path, "");
    await rm(path);
  } catch (error) {
    throw new OptionError(
      {
        where: "traceContext: directory",
        expected: "a directory that can be created and written",
        received: `${formatValue(directory)} (${(error as Error).message})`,
        remedy: "pass a different directory",
      },
      { cause: error },
    );
  }
}

/** Maximum drift between the clocks of two hosts, in seconds per second. */
const MAX_CLOCK_DRIFT = 50e-6;

function addDrift({ offset, error }: ClockOffset, seconds: number): ClockOffset {
  return error === 0 ? { offset, error } : { offset, error: error + seconds * MAX_CLOCK_DRIFT * 1e9 };
}

/** Maximum number of events of all ranks with which a page remains fast, and minimum for one rank. */
const MAX_PAGE_EVENTS = 200_000;
const MIN_RANK_EVENTS = 2000;

interface RecordedTrace {
  readonly events: readonly TraceEvent[];
  readonly memory: readonly MemorySample[];
  readonly clock: ClockOffset;
  readonly note: string | undefined;
}

function encodeTrace(ctx: Context, { events: traceEvents, memory, clock, note }: RecordedTrace): RankTraceData {
  const events = traceEvents
    .filter(({ name }) => !synchronizationEventNames.has(name))
    .map((event) => ({ ...event, start: event.start / 1e9, end: event.end / 1e9 }));
  const [first, last] = [events[0]?.start ?? 0, events.reduce((end, event) => Math.max(end, event.end), 0)];
  const maxEvents = Math.max(MIN_RANK_EVENTS, Math.floor(MAX_PAGE_EVENTS / ctx.size));
  return {
    ...{ format: traceFormat, rank: ctx.rank, worldSize: ctx.size, at: ctx.mesh.coordinate, clock },
    host: ctx.world.hosts?.[ctx.rank] ?? 0,
    events: encodeRank({ events }, maxEvents, Math.max(1e-6, last - first)),
    memory: encodeMemory(memory, maxEvents),
    spent: sumComputeAndWaitSeconds(events),
    ...(note !== undefined && { note }),
  };
}

/** Writes files atomically, because a reader of the directory may find a rank that is being killed. */
async function writeTrace(directory: string, trace: RankTraceData): Promise<string> {
  const path = join(directory, `rank-${trace.rank}.json`);
  await writeAtomically(path, JSON.stringify(trace));
  await writeAtomically(join(directory, "viewer.html"), viewerTemplate());
  return path;
}

let numTemporaryFiles = 0;

/** Returns a path that no other rank uses, also of the same process. */
function temporaryPath(path: string): string {
  return `${path}.${process.pid}.${numTemporaryFiles++}.partial`;
}

async function writeAtomically(path: string, text: string): Promise<void> {
  const partialPath = temporaryPath(path);
  await writeFile(partialPath, text);
  await rename(partialPath, path);
}
