import { availableParallelism } from "node:os";
import { checkOptionNames, OptionError } from "@mosaic/core";

export interface CpuOptions {
  /** Threads that compute, the stream's own included; at most 1024. Default: MOSAIC_THREADS, else the cores / LOCAL_WORLD_SIZE. */
  readonly threads?: number;
  /** Distinguishes devices of one process in messages; default 0. */
  readonly index?: number;
  /** Bytes that may be reserved from the system. Default: MOSAIC_MEMORY_LIMIT (`1500000000`, `512M`, `8G`), else none. */
  readonly memoryLimit?: number;
}

type Environment = Readonly<Record<string, string | undefined>>;

const optionNames = ["threads", "index", "memoryLimit"] as const satisfies readonly (keyof CpuOptions)[];

/** More are a mistake: no machine has so many cores. */
const maxThreads = 1024;

/** Options that can be wrong before anything is opened. */
export function checkOptions(options: CpuOptions): void {
  checkOptionNames("cpu", options, optionNames);
  const { index = 0 } = options;
  if (!Number.isSafeInteger(index) || index < 0)
    throw optionError("cpu({ index })", "a whole number ≥ 0", String(index));
}

/** Threads of a device: the option, else MOSAIC_THREADS, else an equal share of the cores for each local rank. */
export function threadCount(threads: number | undefined, environment: Environment = process.env): number {
  if (threads !== undefined) return checkThreadCount(threads, "cpu({ threads })");
  if (environment.MOSAIC_THREADS) return checkThreadCount(environment.MOSAIC_THREADS, "MOSAIC_THREADS");
  const ranks = environment.LOCAL_WORLD_SIZE ? checkBytes(environment.LOCAL_WORLD_SIZE, "LOCAL_WORLD_SIZE") : 1;
  return Math.min(maxThreads, Math.max(1, Math.floor(availableParallelism() / ranks)));
}

/** Bytes; 0 for no limit. */
export function memoryLimit(bytes: number | undefined, environment: Environment = process.env): number {
  if (bytes !== undefined) return checkBytes(bytes, "cpu({ memoryLimit })");
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
function checkBytes(value: number | string, where: string): number {
  const number = Number(value);
  if (Number.isSafeInteger(number) && number > 0) return number;
  throw optionError(where, "a whole number above 0", typeof value === "string" ? JSON.stringify(value) : String(value));
}

function optionError(where: string, expected: string, received: string): OptionError {
  return new OptionError({ where, expected, received });
}
