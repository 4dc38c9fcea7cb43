import { mkdir, rename, writeFile } from "node:fs/promises";
import { join } from "node:path";
import {
  checkContext,
  ClosedError,
  type Context,
  defineOptions,
  option,
  type OptionsOf,
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
  /** Where the file of each rank goes; made if it is not there. */
  directory: option.custom("a path", (value): value is string => typeof value === "string" && value !== ""),
  /** Seconds after which the trace ends, if the program has not: its events are held in memory until then. Default 60. */
  seconds: option.number({ above: 0, max: 2_000_000, default: 60 }),
  /** Milliseconds between samples of memory. Default 20. */
  memoryInterval: option.number({ above: 0, max: 60_000, default: 20 }),
});
/** How a program is traced. */
export type TraceContextOptions = OptionsOf<typeof traceContextOptions>;

/** A trace under way. */
export interface ContextTrace {
  /** Ends the trace and writes its file, the first time it is called; the file's path. */
  stop(): Promise<string>;
}

/**
 * Begins to trace this rank: what its device and its collectives run, and what memory is allocated. `stop()` writes `rank-N.json` into a
 * directory, which the viewer's page reads, and the page without data beside it, as `viewer.html`. Collective: every rank calls it, beside
 * no other work, as clocks of hosts are compared. A program that calls `ctx.startTrace()` itself takes what was traced until then.
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
 * @throws OptionError for options that do not exist or cannot be.
 */
export async function traceContext(ctx: Context, options: TraceContextOptions): Promise<ContextTrace> {
  checkContext("traceContext", ctx);
  const { directory, seconds, memoryInterval } = traceContextOptions.parse(options);
  await mkdir(directory, { recursive: true });
  const clock = await clockOffset(ctx);
  const memory: MemorySample[] = [];
  const sampleMemory = (): void => {
    try {
      memory.push({ time: Number(process.hrtime.bigint()) / 1e9, bytes: ctx.device.memory().allocated });
    } catch (error) {
      // A context that is closed without stop() has no more to be traced.
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

/** Clocks of two hosts drift apart by up to this much a second. */
const MAX_CLOCK_DRIFT = 50e-6;

function addDrift({ offset, error }: ClockOffset, seconds: number): ClockOffset {
  return error === 0 ? { offset, error } : { offset, error: error + seconds * MAX_CLOCK_DRIFT * 1e9 };
}

/** Events of all ranks that a page remains fast with; and of one, at least. */
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

/** Whole or not at all: what reads the directory may find a rank that is being killed. */
async function writeTrace(directory: string, trace: RankTraceData): Promise<string> {
  const path = join(directory, `rank-${trace.rank}.json`);
  await writeAtomically(path, JSON.stringify(trace));
  await writeAtomically(join(directory, "viewer.html"), viewerTemplate());
  return path;
}

let numTemporaryFiles = 0;

async function writeAtomically(path: string, text: string): Promise<void> {
  // Ranks of one process write the same page, too.
  const temporaryPath = `${path}.${process.pid}.${numTemporaryFiles++}.partial`;
  await writeFile(temporaryPath, text);
  await rename(temporaryPath, path);
}
