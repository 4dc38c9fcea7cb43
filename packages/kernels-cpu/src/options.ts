import { availableParallelism } from "node:os";
import { defineOptions, formatValue, option, OptionError, type OptionsOf } from "@mosaic/core";

/** More are a mistake: no machine has so many cores. */
const maxThreads = 1024;

export const cpuOptions = defineOptions("cpu", {
  /** Threads that compute, the stream's own included. Default: MOSAIC_THREADS, else the cores / LOCAL_WORLD_SIZE. */
  threads: option.integer({ min: 1, max: maxThreads, optional: true }),
  /** Distinguishes devices of one process in messages. Default 0. */
  index: option.integer({ min: 0, default: 0 }),
  /** Bytes that may be reserved from the system. Default: MOSAIC_MEMORY_LIMIT (`1500000000`, `512M`, `8G`), else no limit. */
  memoryLimit: option.integer({ min: 1, optional: true }),
});
/** What `cpu` takes. */
export type CpuOptions = OptionsOf<typeof cpuOptions>;

type Environment = Readonly<Record<string, string | undefined>>;

/** Threads of a device: the option, else MOSAIC_THREADS, else an equal share of the cores for each local rank. */
export function threadCount(threads: number | undefined, environment: Environment = process.env): number {
  if (threads !== undefined) return checkThreadCount(threads, "threads");
  if (environment.MOSAIC_THREADS) return checkThreadCount(environment.MOSAIC_THREADS, "MOSAIC_THREADS");
  const ranks = environment.LOCAL_WORLD_SIZE ? checkBytes(environment.LOCAL_WORLD_SIZE, "LOCAL_WORLD_SIZE") : 1;
  return Math.min(maxThreads, Math.max(1, Math.floor(availableParallelism() / ranks)));
}

/** Bytes; 0 for no limit. */
export function memoryLimit(bytes: number | undefined, environment: Environment = process.env): number {
  if (bytes !== undefined) return bytes;
  const text = environment.MOSAIC_MEMORY_LIMIT;
  if (!text) return 0;
  const [, digits, unit] = /^(\d+)([KMG]?)$/i.exec(text) ?? [];
  if (digits === undefined) throw optionError("MOSAIC_MEMORY_LIMIT", "bytes, or a number followed by K, M or G", text);
  const scale = { "": 1, K: 2 ** 10, M: 2 ** 20, G: 2 ** 30 }[unit!.toUpperCase()]!;
  return checkBytes(Number(digits) * scale, "MOSAIC_MEMORY_LIMIT");
}

function checkThreadCount(value: number | string, where: string): number {
  const threads = checkBytes(value, where);
  if (threads <= maxThreads) return threads;
  throw optionError(where, `at most ${maxThreads} threads`, String(value));
}

/** Text is a variable's: a message shows it as it is written there. */
function checkBytes(given: number | string, where: string): number {
  const value = typeof given === "number" || typeof given === "string" ? Number(given) : Number.NaN;
  if (Number.isSafeInteger(value) && value > 0) return value;
  throw optionError(where, "an integer above 0", formatValue(given));
}

function optionError(where: string, expected: string, received: string): OptionError {
  return new OptionError({ where, expected, received });
}
