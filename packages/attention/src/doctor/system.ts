import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync, statfsSync } from "node:fs";
import { createRequire } from "node:module";
import { availableParallelism, freemem, networkInterfaces, release, totalmem } from "node:os";
import type { Readable } from "node:stream";
import { fileURLToPath } from "node:url";
import type { NcclSystem } from "@mosaic/collectives-nccl";
import type { UcxSystem } from "@mosaic/collectives-ucx";
import type { CpuFeatures } from "@mosaic/kernels-cpu";
import type { CudaSystem } from "@mosaic/kernels-cuda";

/** The error of a probe. */
export interface ProbeFailure {
  readonly name: string;
  readonly message: string;
  readonly remedy?: string;
}

/** The value of a probe, or its error. */
export type ProbeResult<T> = { readonly value: T } | { readonly error: ProbeFailure };

/** The properties of a machine that checks can read. Nothing here throws: unavailable values are undefined or empty. */
export interface System {
  readonly env: NodeJS.ProcessEnv;
  readonly node: { readonly version: string; readonly platform: string; readonly glibc: string | undefined };
  /** The Linux kernel release. */
  readonly release: string;
  /** Number of processors available to this process. */
  readonly cores: number;
  readonly memory: { readonly total: number; readonly free: number };
  /** Network interfaces other than the loopback, each with an address. */
  readonly interfaces: readonly string[];
  exists(path: string): boolean;
  readFile(path: string): string | undefined;
  listDirectory(path: string): readonly string[];
  /** Returns the total and free bytes of the file system that contains `path`. */
  getDiskSpace(path: string): { readonly total: number; readonly free: number } | undefined;
  /** Returns the stdout of a command; undefined if the command does not exist or fails. */
  runCommand(command: string, ...args: readonly string[]): string | undefined;
  /** Returns the version of a package; undefined if it is not installed. */
  version(packageName: string): string | undefined;
  /** Runs a probe in a separate process, because native code may crash or hang. */
  runProbe<Name extends keyof ProbeValues>(probe: Name): Promise<ProbeResult<ProbeValues[Name]>>;
}

const PROBE_TIMEOUT_MS = 60_000;
const COMMAND_TIMEOUT_MS = 10_000;

/** The machine that this process runs on. */
export const currentSystem: System = {
  env: process.env,
  node: { version: process.versions.node, platform: `${process.platform}-${process.arch}`, glibc: getGlibcVersion() },
  release: release(),
  cores: availableParallelism(),
  memory: { total: totalmem(), free: freemem() },
  interfaces: listInterfaces(),
  exists: existsSync,
  readFile: (path) => tryRead(() => readFileSync(path, "utf8")),
  listDirectory: (path) => tryRead(() => readdirSync(path)) ?? [],
  getDiskSpace: (path) =>
    tryRead(() => {
      const { blocks, bavail, bsize } = statfsSync(path);
      return { total: blocks * bsize, free: bavail * bsize };
    }),
  runCommand(command, ...args) {
    const { status, stdout } = spawnSync(command, args, { encoding: "utf8", timeout: COMMAND_TIMEOUT_MS });
    return status === 0 ? stdout : undefined;
  },
  version: (packageName) => tryRead(() => readPackageVersion(packageName)),
  runProbe,
};

function tryRead<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch {
    return undefined;
  }
}

function getGlibcVersion(): string | undefined {
  const { header } = process.report.getReport() as { header?: { glibcVersionRuntime?: string } };
  return header?.glibcVersionRuntime;
}

function listInterfaces(): readonly string[] {
  return Object.entries(networkInterfaces()).flatMap(([name, addresses = []]) => {
    const [firstAddress] = addresses.filter(({ internal }) => !internal);
    return firstAddress ? [`${name} (${firstAddress.address})`] : [];
  });
}

function readPackageVersion(packageName: string): string {
  const { version } = createRequire(import.meta.url)(`${packageName}/package.json`) as { version: string };
  return version;
}

function runProbe<Name extends keyof ProbeValues>(probe: Name): Promise<ProbeResult<ProbeValues[Name]>> {
  return runProbeProcess([probe]);
}

/** Runs a probe in a separate process. `args` are its name and its arguments. */
export async function runProbeProcess<T>(
  args: readonly string[],
  timeoutMs: number = PROBE_TIMEOUT_MS,
): Promise<ProbeResult<T>> {
  const entry = fileURLToPath(new URL("./doctor-probe.js", import.meta.url));
  const child = spawn(process.execPath, [entry, ...args], {
    stdio: ["ignore", "pipe", "ignore", "pipe"],
    timeout: timeoutMs,
    killSignal: "SIGKILL",
  });
  // If no file descriptors are left, Node returns a child without streams, contrary to its types.
  const resultPipe = (child.stdio as ChildProcess["stdio"] | undefined)?.[3] as Readable | null | undefined;
  let resultText = "";
  resultPipe?.setEncoding("utf8").on("data", (text: string) => (resultText += text));
  child.stdout?.resume();
  // A process that could not be started, for example because of a process limit, emits "error" but no "close".
  const exitReason = await new Promise<string>((resolve) => {
    child.on("error", ({ message }) => resolve(message));
    child.on("close", (code, signal) =>
      resolve(signal === null ? `the process exited with code ${code}` : `the process was killed by ${signal}`),
    );
  });
  const parsedResult = tryRead(() => JSON.parse(resultText) as ProbeResult<T>);
  if (parsedResult !== undefined) return parsedResult;
  const message = child.killed ? `timed out after ${timeoutMs / 1000} s` : exitReason;
  return { error: { name: "Crash", message } };
}

/** The values of the probes, each of which runs native code in a separate process. */
export interface ProbeValues {
  /** Features reported by the CPU device's addon. */
  readonly cpu: CpuFeatures;
  /** The all-reduced sum of two ranks, which must be 12. */
  readonly ranks: number;
  readonly cuda: CudaSystem;
  /** The matmul result of each GPU, which must be 6. */
  readonly gpus: readonly number[];
  readonly nccl: NcclSystem;
  readonly ucx: UcxSystem;
}

/** A "problem" is an installed part that does not work. A "note" is information or a possible improvement. */
export type FindingLevel = "ok" | "note" | "problem";

/** One result of a check. */
export interface Finding {
  readonly level: FindingLevel;
  readonly text: string;
  /** The suggested action. */
  readonly remedy?: string;
}

/** One check of the doctor. It reads the machine only through `system`, and never throws. */
export interface Check {
  readonly name: string;
  run(system: System): readonly Finding[] | Promise<readonly Finding[]>;
}

export const createOk = (text: string): Finding => ({ level: "ok", text });
export const createNote = (text: string, remedy?: string): Finding => ({
  level: "note",
  text,
  ...(remedy && { remedy }),
});
export const createProblem = (text: string, remedy?: string): Finding => ({
  level: "problem",
  text,
  ...(remedy && { remedy }),
});

/** Formats bytes, for example as "24.7 GB". */
export function formatGigabytes(bytes: number): string {
  return bytes >= 1e8 ? `${(bytes / 1e9).toFixed(1)} GB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

/**
 * Returns the text and the remedy of a failure. If they are not separate, the text is the first sentence of the
 * message.
 */
export function formatFailure({ message, remedy }: ProbeFailure): readonly [text: string, remedy?: string] {
  if (remedy !== undefined) return [message, remedy];
  const end = /\.\s+(?=[A-Z])|\n|; (?=install )/.exec(message);
  return end ? [message.slice(0, end.index), message.slice(end.index + end[0].length)] : [message];
}
