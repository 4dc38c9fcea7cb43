import { createHash, randomBytes } from "node:crypto";
import { readdirSync, readFileSync, statSync } from "node:fs";
import { availableParallelism, hostname } from "node:os";
import { resolve } from "node:path";
import { argument, type ArgumentKind, mismatch } from "./arguments.ts";
import { type Command, nodeCommand, programCommand } from "./entry.ts";
import { UsageError } from "./errors.ts";
import { ignoreErrors } from "./ignore-errors.ts";
import type { LaunchOptions } from "./job.ts";
import { findClosestMatch } from "./options/closest-match.ts";
import { DEFAULT_RDZV_PORT, MAX_NODES, type NodeRange, parseEndpoint, parseNodeRange } from "./options/endpoint.ts";

/** The longest delay of Node's timers, nearly 25 days. Node replaces a longer delay by one millisecond. */
export const MAX_TIMER_MS: number = 2 ** 31 - 1;

/** The maximum number of ranks of a job, as specified in docs/control-plane.md, and hence of a node. */
export const MAX_RANKS = 65_536;

/** The maximum number of threads of a CPU device. */
export const MAX_THREADS = 1024;

/** A job with all defaults resolved. The processes that are started depend on nothing else. */
export interface LaunchPlan {
  readonly runId: string;
  readonly node: string;
  readonly command: Command;
  readonly cwd: string;
  readonly nproc: number;
  readonly threads: string;
  readonly role: string;
  readonly rdzvId: string;
  readonly masterPort: number;
  readonly env: Readonly<Record<string, string>>;
  readonly color: boolean;
  readonly graceMs: number;
  /** End of the scheduler's allocation, in milliseconds since the epoch; Infinity when unset. */
  readonly jobEndsAt: number;
  readonly failureGraceMs: number;
  readonly timeoutMs: number | undefined;
  readonly maxRestarts: number;
  readonly restartBackoffMs: number;
  readonly restartResetMs: number;
  readonly minUptimeMs: number;
  readonly logDir: string | undefined;
  /** Directory for the traces of all attempts, in a subdirectory for the run; undefined without tracing. */
  readonly traceDir: string | undefined;
  /** Settings of a job on several nodes; undefined for a job on one node. */
  readonly nodes: NodesPlan | undefined;
}

const nprocKeywords = ["auto", "cpu", "gpu"];
/** The values of `nprocPerNode`, for errors. */
export const nprocValues: string = `an integer from 1 to ${MAX_RANKS}, auto, cpu or gpu`;

/** The kind of each option. The ranges of numbers are checked when they are resolved. */
const optionKinds: Readonly<Record<keyof LaunchOptions, ArgumentKind>> = {
  ...{ entry: argument.string, args: argument.strings, exec: argument.boolean, cwd: argument.string },
  ...{ env: argument.stringRecord, nodeArgs: argument.strings, imports: argument.strings, threads: argument.number },
  nprocPerNode: {
    expected: nprocValues,
    accepts: (value) => typeof value === "number" || nprocKeywords.includes(value as string),
  },
  ...{ role: argument.string, rdzvId: argument.string, masterPort: argument.number, graceMs: argument.number },
  ...{ failureGraceMs: argument.number, timeoutMs: argument.number, maxRestarts: argument.number },
  ...{ restartBackoffMs: argument.number, restartResetMs: argument.number, minUptimeMs: argument.number },
  ...{ logDir: argument.string, traceDir: argument.string, color: argument.boolean, onEvent: argument.callback },
  abort: {
    expected: "an AbortSignal",
    accepts: (value) => argument.callback.accepts((value as Partial<AbortSignal> | null)?.addEventListener),
  },
  nnodes: { expected: "N or MIN:MAX", accepts: (value) => typeof value === "number" || typeof value === "string" },
  ...{ nodeRank: argument.number, rdzvEndpoint: argument.string, rdzvTimeoutMs: argument.number },
  ...{ lastCallMs: argument.number, bindAny: argument.boolean },
};

/** Throws UsageError for an unknown option and for a value of the wrong type. */
function checkOptions(options: LaunchOptions): void {
  const optionsError = mismatch(argument.options, options);
  if (optionsError !== undefined) throw new UsageError(`launch: ${optionsError}`);
  const optionNames = Object.keys(optionKinds);
  const unknownName = Object.keys(options).find((name) => !optionNames.includes(name));
  if (unknownName !== undefined) {
    const suggestion = findClosestMatch(unknownName, optionNames);
    const remedy =
      suggestion === undefined ? `expected one of ${optionNames.join(", ")}` : `did you mean "${suggestion}"?`;
    throw new UsageError(`launch: unknown option "${unknownName}"; ${remedy}`);
  }
  for (const [name, kind] of Object.entries(optionKinds) as [keyof LaunchOptions, ArgumentKind][]) {
    const value = options[name];
    const optionError = value === undefined && name !== "entry" ? undefined : mismatch(kind, value);
    if (optionError !== undefined) throw new UsageError(`launch: ${name}: ${optionError}`);
  }
}

/** Resolves the defaults of `options`. Throws UsageError if the job cannot be started with these options. */
export function resolvePlan(options: LaunchOptions, environment: NodeJS.ProcessEnv = process.env): LaunchPlan {
  checkOptions(options);
  const cwd = options.cwd ?? workingDirectory();
  if (ignoreErrors(() => statSync(cwd))?.isDirectory() !== true)
    throw new UsageError(`cwd: expected an existing directory, received ${JSON.stringify(cwd)}`);
  const { entry, args = [], nodeArgs = [], imports = [] } = options;
  if (options.exec === true && nodeArgs.length + imports.length > 0)
    throw new UsageError("--exec: --node-arg and --import apply only to Node; omit them, or omit --exec");
  const nproc = resolveProcesses(options.nprocPerNode ?? "auto", environment);
  const toCommand = options.exec === true ? programCommand : nodeCommand;
  return {
    runId: `${runIdPrefix(options.rdzvId)}${randomBytes(5).toString("hex")}`,
    node: hostname(),
    command: toCommand({ entry, args, cwd, nodeArgs, imports }),
    cwd,
    nproc,
    threads: resolveThreads(options, nproc, environment),
    role: options.role ?? "default",
    rdzvId: options.rdzvId ?? "none",
    masterPort: checkInteger("masterPort", options.masterPort ?? 0, 65_535),
    env: options.env ?? {},
    color: options.color ?? false,
    graceMs: checkTime("graceMs", options.graceMs ?? 30_000),
    // A value that is not a time, such as "" or "Unknown", is treated as unset.
    jobEndsAt:
      Number(environment.SLURM_JOB_END_TIME) > 0
        ? Number(environment.SLURM_JOB_END_TIME) * 1000
        : Number.POSITIVE_INFINITY,
    failureGraceMs: checkTime("failureGraceMs", options.failureGraceMs ?? 500),
    timeoutMs: checkTime("timeoutMs", options.timeoutMs ?? 0) || undefined,
    maxRestarts: checkInteger("maxRestarts", options.maxRestarts ?? 0),
    restartBackoffMs: checkTime("restartBackoffMs", options.restartBackoffMs ?? 1000),
    restartResetMs: checkTime("restartResetMs", options.restartResetMs ?? 600_000),
    minUptimeMs: checkTime("minUptimeMs", options.minUptimeMs ?? 10_000),
    logDir: options.logDir,
    traceDir: options.traceDir === undefined ? undefined : resolve(cwd, options.traceDir),
    nodes: resolveNodes(options, cwd),
  };
}

/** A job on several nodes, as resolved on one of them. */
export interface NodesPlan extends NodeRange {
  readonly nodeRank: number;
  readonly endpoint: { readonly host: string; readonly port: number };
  readonly timeoutMs: number;
  readonly lastCallMs: number;
  readonly bindsAllAddresses: boolean;
  /** The entry and its arguments, for messages. */
  readonly commandText: string;
  /** Hash of the entry's content and all arguments, which must be the same on all nodes. */
  readonly digest: string;
}

function resolveNodes(options: LaunchOptions, cwd: string): NodesPlan | undefined {
  const range = parseNodeRange(String(options.nnodes ?? 1));
  if (range === undefined)
    throw new UsageError(
      `nnodes: expected N or MIN:MAX with at most ${MAX_NODES} nodes, received ${JSON.stringify(options.nnodes)}`,
    );
  if (range.max === 1) return undefined;
  const { nodeRank, rdzvEndpoint = "" } = options;
  if (nodeRank === undefined || !Number.isInteger(nodeRank) || nodeRank < 0 || nodeRank >= range.max)
    throw new UsageError(`nodeRank: expected an integer from 0 to ${range.max - 1}, received ${nodeRank}`);
  const endpoint = parseEndpoint(rdzvEndpoint);
  if (endpoint === undefined || endpoint.host === "")
    throw new UsageError(
      `rdzvEndpoint: expected host or host:port of node 0, received ${JSON.stringify(rdzvEndpoint)}`,
    );
  return {
    ...{ ...range, nodeRank },
    endpoint: { host: endpoint.host, port: endpoint.port ?? DEFAULT_RDZV_PORT },
    timeoutMs: checkTime("rdzvTimeoutMs", options.rdzvTimeoutMs ?? 300_000),
    lastCallMs: checkTime("lastCallMs", options.lastCallMs ?? 5000),
    bindsAllAddresses: options.bindAny ?? false,
    commandText: [options.entry, ...(options.args ?? [])].join(" ").slice(0, 500),
    digest: computeCommandDigest(options, cwd),
  };
}

function computeCommandDigest(
  { entry, args = [], exec, nodeArgs = [], imports = [] }: LaunchOptions,
  cwd: string,
): string {
  const hash = createHash("sha256").update(JSON.stringify([args, nodeArgs, imports, exec === true]));
  // A program may be a different build on each host, so only its name must be the same.
  return hash.update(exec === true ? entry : readFileSync(resolve(cwd, entry))).digest("hex");
}

/** Returns the working directory of this process. Throws UsageError if it has been deleted. */
export function workingDirectory(): string {
  try {
    return process.cwd();
  } catch (error) {
    const { message } = error as Error;
    throw new UsageError(`the working directory has been deleted (${message}); change to an existing directory`);
  }
}

function checkTime(name: string, ms: number): number {
  if (ms >= 0 && ms <= MAX_TIMER_MS) return ms;
  throw new UsageError(`${name}: expected a time from 0 to ${MAX_TIMER_MS} ms, received ${ms}`);
}

function checkInteger(name: string, value: number, max: number = Number.MAX_SAFE_INTEGER): number {
  if (Number.isSafeInteger(value) && value >= 0 && value <= max) return value;
  throw new UsageError(`${name}: expected an integer from 0 to ${max}, received ${value}`);
}

function resolveProcesses(requestedProcesses: number | "auto" | "cpu" | "gpu", environment: NodeJS.ProcessEnv): number {
  if (typeof requestedProcesses === "number") {
    if (Number.isInteger(requestedProcesses) && requestedProcesses >= 1 && requestedProcesses <= MAX_RANKS)
      return requestedProcesses;
    throw new UsageError(`nproc-per-node: expected ${nprocValues}, received ${requestedProcesses}`);
  }
  if (requestedProcesses === "cpu") return availableCpus(environment);
  const gpuCount = countGpus(environment);
  if (requestedProcesses === "gpu" && gpuCount === 0)
    throw new UsageError("--nproc-per-node gpu: no NVIDIA GPU found; pass a number, auto or cpu");
  return Math.max(1, gpuCount);
}

/**
 * Returns the number of CPUs of this process, or SLURM's allocation on this node if that is smaller (SLURM may not bind
 * CPUs).
 */
function availableCpus(environment: NodeJS.ProcessEnv): number {
  return Math.min(availableParallelism(), Number(environment.SLURM_CPUS_ON_NODE) || Number.POSITIVE_INFINITY);
}

/**
 * Returns the prefix of the run id. Its characters are restricted because it is part of environment variables and file
 * names.
 */
function runIdPrefix(name: string | undefined): string {
  if (name === undefined || name === "none") return "";
  if (/^[A-Za-z0-9._-]{1,64}$/.test(name)) return `${name}-`;
  throw new UsageError(
    `--rdzv-id: expected 1 to 64 letters, digits, ".", "_" and "-", received ${JSON.stringify(name)}`,
  );
}

function resolveThreads(options: LaunchOptions, nproc: number, environment: NodeJS.ProcessEnv): string {
  if (options.threads !== undefined) return checkThreads("threads", String(options.threads));
  if (options.env?.MOSAIC_THREADS) return checkThreads("--env MOSAIC_THREADS", options.env.MOSAIC_THREADS);
  if (environment.MOSAIC_THREADS) return checkThreads("MOSAIC_THREADS", environment.MOSAIC_THREADS);
  return String(Math.max(1, Math.floor(availableCpus(environment) / nproc)));
}

/** Rejects an invalid thread count once in the launcher, instead of in every rank. */
function checkThreads(source: string, text: string): string {
  if (/^[1-9]\d*$/.test(text) && Number(text) <= MAX_THREADS) return text;
  throw new UsageError(`${source}: expected an integer from 1 to ${MAX_THREADS}, received ${JSON.stringify(text)}`);
}

/**
 * Returns the number of NVIDIA GPUs that are visible to a rank on this machine: the device nodes, restricted by
 * CUDA_VISIBLE_DEVICES. No driver is loaded, so a machine without a driver has 0 GPUs.
 */
export function countGpus(env: NodeJS.ProcessEnv, nodes: number = countDeviceNodes()): number {
  const visibleDevices = env.CUDA_VISIBLE_DEVICES;
  if (visibleDevices === undefined) return nodes;
  const ids = visibleDevices.split(",").map((id) => id.trim());
  // CUDA ignores all ids from the first invalid one on. Users write -1 for no GPU.
  const firstInvalidIndex = ids.findIndex((id) => id === "" || id.startsWith("-") || isInvalidDevice(id, nodes));
  return firstInvalidIndex < 0 ? ids.length : firstInvalidIndex;
}

/** Returns false without device nodes, as under WSL, because the valid ids are then unknown. */
function isInvalidDevice(id: string, nodes: number): boolean {
  return nodes > 0 && /^\d+$/.test(id) && Number(id) >= nodes;
}

function countDeviceNodes(): number {
  try {
    return readdirSync("/dev").filter((name) => /^nvidia\d+$/.test(name)).length;
  } catch {
    return 0;
  }
}
