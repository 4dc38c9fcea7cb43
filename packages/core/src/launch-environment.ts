import { expectValue, OptionError } from "./errors.ts";

type EnvironmentVariables = Readonly<Record<string, string | undefined>>;

/** Rank and job of this process, from the environment variables of its launcher. */
export interface LaunchEnvironment {
  /** The launcher that set the variables; undefined without a launcher, when this is the only rank. */
  readonly launcher: "mosaic-run" | "torchrun" | "Open MPI" | "MPICH" | "SLURM" | undefined;
  readonly rank: number;
  readonly worldSize: number;
  /** Rank among the ranks of this host; undefined if the launcher does not set it. */
  readonly localRank: number | undefined;
  readonly localWorldSize: number | undefined;
  /** 0 at first, incremented with every restart of the job. */
  readonly attempt: number;
  /** Name of the job, unique among the jobs that run on this host; undefined if the launcher does not set one. */
  readonly job: string | undefined;
  /**
   * Address at which rank 0's host accepts connections of the other ranks; undefined if the launcher does not set it.
   */
  readonly endpoint: { readonly host: string; readonly port: number } | undefined;
}

/** Names of the environment variables of a launcher. */
interface LauncherVariables {
  readonly launcher: "torchrun" | "Open MPI" | "MPICH" | "SLURM";
  readonly rank: string;
  readonly worldSize: string;
  readonly localRank: string;
  /** For SLURM, this variable lists the counts of all nodes. */
  readonly localWorldSize: string;
}

/**
 * The variables of torchrun, which mosaic-run and user programs also set. They take precedence over those of other
 * launchers.
 */
const torchrun: LauncherVariables = {
  launcher: "torchrun",
  rank: "RANK",
  worldSize: "WORLD_SIZE",
  localRank: "LOCAL_RANK",
  localWorldSize: "LOCAL_WORLD_SIZE",
};
const openMpi: LauncherVariables = {
  launcher: "Open MPI",
  rank: "OMPI_COMM_WORLD_RANK",
  worldSize: "OMPI_COMM_WORLD_SIZE",
  localRank: "OMPI_COMM_WORLD_LOCAL_RANK",
  localWorldSize: "OMPI_COMM_WORLD_LOCAL_SIZE",
};
/** Hydra, the launcher of MPICH and its derivatives. */
const mpich: LauncherVariables = {
  launcher: "MPICH",
  rank: "PMI_RANK",
  worldSize: "PMI_SIZE",
  localRank: "MPI_LOCALRANKID",
  localWorldSize: "MPI_LOCALNRANKS",
};
const slurm: LauncherVariables = {
  launcher: "SLURM",
  rank: "SLURM_PROCID",
  worldSize: "SLURM_NTASKS",
  localRank: "SLURM_LOCALID",
  localWorldSize: "SLURM_STEP_TASKS_PER_NODE",
};

/** First step id that SLURM uses for batch scripts and interactive shells, whose processes srun did not start. */
const FIRST_SPECIAL_STEP = 0xffff_fff0;
/** Below the ephemeral port range of common systems. */
const SLURM_PORT_RANGE = { first: 20_000, count: 12_000 } as const;

/**
 * Returns rank and job of this process from the variables of the first launcher found: mosaic-run and torchrun (RANK,
 * WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), mpirun of Open MPI (OMPI_COMM_WORLD_RANK, …),
 * mpirun of MPICH (PMI_RANK, …), or srun (SLURM_PROCID, … in a job step). MASTER_ADDR, MASTER_PORT and MOSAIC_RUN_ID
 * are used with any launcher. Empty variables count as unset.
 *
 * @throws OptionError if a value is not an integer, if the rank is not less than the size, if only one of rank and size
 * is set, or if RANK and WORLD_SIZE contradict the launcher's own variables.
 * @example
 * ```ts
 * import { launchEnvironment } from "@mosaic/core";
 * const env = { SLURM_JOB_ID: "7", SLURM_STEP_ID: "0", SLURM_PROCID: "3", SLURM_NTASKS: "4" };
 * const { launcher, rank, worldSize } = launchEnvironment(env);
 * [launcher, rank, worldSize]; // => ["SLURM", 3, 4]
 * ```
 */
export function launchEnvironment(env: EnvironmentVariables = process.env): LaunchEnvironment {
  checkEnvironment("launchEnvironment", env);
  const launcher = findLauncher(env);
  const [rank, worldSize] = launcher === undefined ? [0, 1] : checkRank(launcher, env);
  if (launcher === torchrun) checkAgreement(rank, worldSize, env);
  return {
    launcher: env["MOSAIC_RUN_ID"] && launcher === torchrun ? "mosaic-run" : launcher?.launcher,
    ...{ rank, worldSize },
    localRank: localRank(env),
    localWorldSize: localWorldSize(env),
    attempt:
      parseInteger("MOSAIC_ATTEMPT", env) ?? parseInteger("TORCHELASTIC_RESTART_COUNT", env) ?? parseSlurmRestarts(env),
    job: resolveJobId(launcher, env),
    endpoint: parseEndpoint(env),
  };
}

/**
 * Returns the rank of this process within its host; undefined if the launcher does not set it.
 *
 * @example
 * ```ts
 * import { localRank } from "@mosaic/core";
 * localRank({ RANK: "5", WORLD_SIZE: "8", LOCAL_RANK: "1" }); // => 1
 * ```
 * @throws OptionError unless it is an integer ≥ 0.
 */
export function localRank(env: EnvironmentVariables = process.env): number | undefined {
  checkEnvironment("localRank", env);
  const parsedRank = parseInteger("LOCAL_RANK", env);
  const launcher = localLauncher(env);
  return parsedRank ?? (launcher === undefined ? undefined : parseInteger(launcher.localRank, env));
}

/**
 * Returns the number of ranks of this host; undefined if the launcher does not set it.
 *
 * @example
 * ```ts
 * import { localWorldSize } from "@mosaic/core";
 * localWorldSize({ RANK: "5", WORLD_SIZE: "8", LOCAL_WORLD_SIZE: "4" }); // => 4
 * ```
 * @throws OptionError unless it is an integer ≥ 1.
 */
export function localWorldSize(env: EnvironmentVariables = process.env): number | undefined {
  checkEnvironment("localWorldSize", env);
  const parsedSize = parseInteger("LOCAL_WORLD_SIZE", env, 1);
  const launcher = localLauncher(env);
  if (parsedSize !== undefined || launcher === undefined) return parsedSize;
  return launcher === slurm ? parseSlurmTaskCount(env) : parseInteger(launcher.localWorldSize, env, 1);
}

function checkEnvironment(where: string, env: unknown): void {
  expectValue(where, typeof env === "object" && env !== null, "an object of environment variables", env);
}

/**
 * Returns the launcher that sets the local rank. If only RANK and WORLD_SIZE were copied from another launcher's
 * variables, returns that launcher.
 */
function localLauncher(env: EnvironmentVariables): LauncherVariables | undefined {
  const launcher = findLauncher(env);
  if (launcher !== torchrun || env["LOCAL_RANK"] || env["LOCAL_WORLD_SIZE"]) return launcher;
  const nonTorchrunLauncher = findLauncher({ ...env, RANK: "", WORLD_SIZE: "" });
  const hasSameRankAndSize =
    nonTorchrunLauncher &&
    env[nonTorchrunLauncher.rank] === env["RANK"] &&
    env[nonTorchrunLauncher.worldSize] === env["WORLD_SIZE"];
  return hasSameRankAndSize ? nonTorchrunLauncher : launcher;
}

function findLauncher(env: EnvironmentVariables): LauncherVariables | undefined {
  const isLauncherSet = ({ rank, worldSize }: LauncherVariables): boolean => Boolean(env[rank] || env[worldSize]);
  if (isLauncherSet(torchrun)) return torchrun;
  if (isLauncherSet(openMpi)) return openMpi;
  // `srun --mpi=pmi2` also sets PMI_RANK, but not the local rank.
  if (isLauncherSet(mpich) && (env[mpich.localRank] || !isSlurmStep(env))) return mpich;
  return isSlurmStep(env) && isLauncherSet(slurm) ? slurm : undefined;
}

/**
 * Returns whether this process is a task of a SLURM job step. Batch scripts also have the variables of tasks, but are
 * not tasks.
 */
function isSlurmStep(env: EnvironmentVariables): boolean {
  return Boolean(env["SLURM_STEP_ID"]) && Number(env["SLURM_STEP_ID"]) < FIRST_SPECIAL_STEP;
}

function checkRank(launcher: LauncherVariables, env: EnvironmentVariables): readonly [rank: number, worldSize: number] {
  const rank = parseInteger(launcher.rank, env);
  const worldSize = parseInteger(launcher.worldSize, env, 1);
  if (rank === undefined || worldSize === undefined) {
    const [missingVariable, presentVariable] =
      rank === undefined ? [launcher.rank, launcher.worldSize] : [launcher.worldSize, launcher.rank];
    throw new OptionError({
      where: `environment variable ${missingVariable}`,
      expected: `an integer, because ${presentVariable} is set`,
      received: "none",
      remedy: `set both, or start the ranks with mosaic-run; without a launcher, unset ${presentVariable}`,
    });
  }
  if (rank < worldSize) return [rank, worldSize];
  throw new OptionError({
    where: `environment variable ${launcher.rank}`,
    expected: `an integer below ${launcher.worldSize} = ${worldSize}`,
    received: String(rank),
  });
}

/**
 * Throws if RANK and WORLD_SIZE contradict the launcher's variables, for example because a shell or a container exports
 * them to all processes. A larger WORLD_SIZE is valid, because each launched process may start several ranks. Values
 * set by torchrun or mosaic-run are also valid.
 */
function checkAgreement(rank: number, worldSize: number, env: EnvironmentVariables): void {
  if (env["MOSAIC_RUN_ID"] || env["TORCHELASTIC_RUN_ID"]) return;
  const launcher = findLauncher({ ...env, RANK: "", WORLD_SIZE: "" });
  if (launcher === undefined) return;
  const [expectedRank, expectedSize] = checkRank(launcher, env);
  if (worldSize > expectedSize || (worldSize === expectedSize && rank === expectedRank)) return;
  throw new OptionError({
    where: "environment variables RANK and WORLD_SIZE",
    expected: `${launcher.rank} ${expectedRank} and ${launcher.worldSize} ${expectedSize}, as set by ${launcher.launcher}`,
    received: `${rank} and ${worldSize}`,
    remedy: "unset RANK and WORLD_SIZE, or pass rank and worldSize to init",
  });
}

function resolveJobId(launcher: LauncherVariables | undefined, env: EnvironmentVariables): string | undefined {
  const { MOSAIC_RUN_ID, MASTER_ADDR = "", MASTER_PORT, PMIX_NAMESPACE } = env;
  if (MOSAIC_RUN_ID) return MOSAIC_RUN_ID;
  if (MASTER_PORT) return `${MASTER_ADDR}:${MASTER_PORT}`;
  if (launcher === slurm) return `slurm ${env["SLURM_JOB_ID"]}.${env["SLURM_STEP_ID"]}`;
  return launcher === openMpi && PMIX_NAMESPACE ? `pmix ${PMIX_NAMESPACE}` : undefined;
}

function parseEndpoint(env: EnvironmentVariables): LaunchEnvironment["endpoint"] {
  const host = env["MASTER_ADDR"] || (isSlurmStep(env) ? firstHost(env["SLURM_STEP_NODELIST"]) : undefined);
  const port = resolveEndpointPort(env);
  return host === undefined || port === undefined ? undefined : { host, port };
}

/** Returns the port of the endpoint: MASTER_PORT + 1 if torchrun's own store listens on MASTER_PORT. */
function resolveEndpointPort(env: EnvironmentVariables): number | undefined {
  const mosaicPort = parseInteger("MOSAIC_MASTER_PORT", env, 1, 65_535);
  const masterPort = parseInteger("MASTER_PORT", env, 1, 65_535);
  if (mosaicPort !== undefined) return mosaicPort;
  if (masterPort !== undefined) return env["TORCHELASTIC_USE_AGENT_STORE"] === "True" ? masterPort + 1 : masterPort;
  if (!isSlurmStep(env)) return undefined;
  // Assigns different ports to steps of one job and to consecutive jobs, which may share a host.
  const jobStepNumber = 64 * (parseInteger("SLURM_JOB_ID", env) ?? 0) + (parseInteger("SLURM_STEP_ID", env) ?? 0);
  return SLURM_PORT_RANGE.first + (jobStepNumber % SLURM_PORT_RANGE.count);
}

function parseSlurmRestarts(env: EnvironmentVariables): number {
  return isSlurmStep(env) ? (parseInteger("SLURM_RESTART_COUNT", env) ?? 0) : 0;
}

/** Returns the number of tasks of this node from a list of all nodes, such as `2(x3),1`. */
function parseSlurmTaskCount(env: EnvironmentVariables): number | undefined {
  const counts = (env["SLURM_STEP_TASKS_PER_NODE"] ?? "").split(",").flatMap((entry) => {
    const [, tasks, nodes = "1"] = /^(\d+)(?:\(x(\d+)\))?$/.exec(entry) ?? [];
    return tasks === undefined ? [] : Array.from({ length: Number(nodes) }, () => Number(tasks));
  });
  return counts[parseInteger("SLURM_NODEID", env) ?? 0];
}

/** Returns the first host of a list, for example n001 of `n[001-003,7],m1`. */
function firstHost(hostList = ""): string | undefined {
  const [firstEntry = ""] = /^(?:[^,[]|\[[^\]]*\])*/.exec(hostList) ?? [];
  return firstEntry.replaceAll(/\[(\d+)[^\]]*\]/g, "$1") || undefined;
}

function parseInteger(
  name: string,
  env: EnvironmentVariables,
  min = 0,
  max: number = Number.MAX_SAFE_INTEGER,
): number | undefined {
  const text = env[name];
  if (text === undefined || text === "") return undefined;
  if (/^\d+$/.test(text) && Number(text) >= min && Number(text) <= max) return Number(text);
  const range = max < Number.MAX_SAFE_INTEGER ? ` from ${min} to ${max}` : ` ≥ ${min}`;
  throw new OptionError({
    where: `environment variable ${name}`,
    expected: `an integer${range}`,
    received: JSON.stringify(text),
  });
}
