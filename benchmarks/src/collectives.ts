import type { BenchmarkCase, ResultRow } from "./case.ts";
import { runProcesses } from "./processes.ts";

const RANKS = 2;
const MIB = 2 ** 20;

export const operations = ["sendRecv", "allGather", "reduceScatter", "allReduce", "allToAll"] as const;
export type Operation = (typeof operations)[number];

/** Arguments of the ranks. */
export interface CollectivesJob {
  readonly repetitions: number;
  readonly largeBytes: number;
}

/** Report of rank 0: seconds per call, the minimum of the repetitions. */
export interface Timing {
  readonly operation: Operation | "copy";
  readonly bytes: number;
  readonly seconds: number;
}

const LARGE_MESSAGE_BYTES = 16 * MIB;
const SMALL_MESSAGE_BYTES = 16;

/**
 * Collectives between two processes. Small messages: time per call in a chain of calls. Each call waits for the
 * previous one on the compute stream, and the host waits for none. Large messages: bytes of the tensor per second,
 * compared with a plain memory copy of the same size.
 */
export const collectiveCases: readonly BenchmarkCase[] = [
  {
    names: operations.flatMap((operation) => [
      formatName(operation, SMALL_MESSAGE_BYTES),
      formatName(operation, LARGE_MESSAGE_BYTES),
    ]),
    async run({ repetitions }) {
      const job: CollectivesJob = { repetitions, largeBytes: LARGE_MESSAGE_BYTES };
      const [timings] = await runProcesses<Timing>("./collectives-rank.js", RANKS, job);
      const copy = timings!.find(({ operation }) => operation === "copy")!;
      return timings!.filter(({ operation }) => operation !== "copy").map((timing) => createRow(timing, copy.seconds));
    },
  },
];

function formatName(operation: string, bytes: number): string {
  return `collectives.${RANKS}.${operation}.${bytes < MIB ? `${bytes}B` : `${bytes / MIB}MiB`}`;
}

function createRow({ operation, bytes, seconds }: Timing, copySeconds: number): ResultRow {
  const name = formatName(operation, bytes);
  if (bytes < MIB) {
    const microseconds = seconds * 1e6;
    return { case: name, numbers: { microseconds }, text: `${microseconds.toFixed(1).padStart(7)} µs a call` };
  }
  const gigabytesPerSecond = bytes / seconds / 1e9;
  const copySpeedRatio = copySeconds / seconds;
  return {
    case: name,
    numbers: { gigabytesPerSecond, vsCopy: copySpeedRatio },
    text: `${gigabytesPerSecond.toFixed(2).padStart(7)} GB/s algorithm bandwidth   ${copySpeedRatio.toFixed(2)} × that of a memory copy (${(bytes / copySeconds / 1e9).toFixed(1)} GB/s)`,
  };
}
