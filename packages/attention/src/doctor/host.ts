// Checks of the host: Node, the system, processor, memory, limits, network and job.

import { environmentFlag, type LaunchEnvironment, launchEnvironment } from "@mosaic/core";
import { listRdmaDevices, listRdmaPorts } from "./gpu.ts";
import {
  type Check,
  type Finding,
  formatGigabytes,
  createNote,
  createOk,
  createProblem,
  type System,
} from "./system.ts";

const MIN_NODE_VERSION = [20, 19] as const;

export const nodeVersionCheck: Check = {
  name: "Node",
  run({ node: { version, platform, glibc } }) {
    const [major = 0, minor = 0] = version.split(".").map(Number);
    const text = `${version}, ${platform}, ${glibc === undefined ? "no glibc" : `glibc ${glibc}`}`;
    if (major < MIN_NODE_VERSION[0] || (major === MIN_NODE_VERSION[0] && minor < MIN_NODE_VERSION[1])) {
      return [createProblem(text, `install Node ${MIN_NODE_VERSION.join(".")} or newer`)];
    }
    if (platform === "linux-x64" && glibc === undefined) {
      return [
        createProblem(
          text,
          "the addons require glibc: use an image with glibc (not Alpine), or build the addons in this image",
        ),
      ];
    }
    return [createOk(text)];
  },
};

export const osCheck: Check = {
  name: "system",
  run({ readFile, release, exists }) {
    const name = /^PRETTY_NAME="?(.*?)"?$/m.exec(readFile("/etc/os-release") ?? "")?.[1] ?? "unknown distribution";
    const containerText = ["/.dockerenv", "/run/.containerenv", "/singularity"].some(exists) ? ", in a container" : "";
    return [createOk(`${name}, Linux ${release}${containerText}`)];
  },
};

/** Checks properties that affect the speed of kernels. The check `packages` reports whether they run at all. */
export const cpuCheck: Check = {
  name: "processor",
  async run(system) {
    const model = /^model name\s*:\s*(.*)$/m.exec(system.readFile("/proc/cpuinfo") ?? "")?.[1] ?? "unknown model";
    const probeResult = await system.runProbe("cpu");
    const kernels = "value" in probeResult ? `, kernels for ${probeResult.value.isa}` : "";
    const findings = [createOk(`${model}, ${system.cores} ${system.cores === 1 ? "core" : "cores"}${kernels}`)];
    if ("value" in probeResult && probeResult.value.isa === "scalar") {
      findings.push(
        createNote("no AVX2: attention uses scalar kernels, many times slower", "use a processor from 2015 or newer"),
      );
    }
    const limit = findCpuLimit(system);
    if (limit !== undefined && limit < system.cores) {
      const threads = Math.max(1, Math.floor(limit));
      findings.push(
        createNote(
          `the CPU quota of this container is ${limit} processors`,
          `set MOSAIC_THREADS=${threads}, or raise the quota`,
        ),
      );
    }
    return findings;
  },
};

/** Returns the memory limit of this process's control groups, in bytes; undefined if there is none. */
function findMemoryLimit(system: System): number | undefined {
  const limits = [
    ...readCgroupFiles(system, "", "memory.max"),
    ...readCgroupFiles(system, "memory", "memory.limit_in_bytes"),
  ]
    .map((text) => Number(text.trim()))
    // "max" is not a number. Version 1 represents the absence of a limit as nearly 2⁶³.
    .filter((bytes) => bytes > 0 && bytes < 2 ** 60);
  return limits.length > 0 ? Math.min(...limits) : undefined;
}

/** Returns the CPU quota of this process's control groups, in processors; undefined if there is none. */
function findCpuLimit(system: System): number | undefined {
  const cpuLimits = readCgroupFiles(system, "", "cpu.max").map((text) => {
    const [quota, period] = text.trim().split(" ").map(Number);
    return quota! / period!;
  });
  const periods = readCgroupFiles(system, "cpu", "cpu.cfs_period_us");
  readCgroupFiles(system, "cpu", "cpu.cfs_quota_us").forEach((text, i) =>
    cpuLimits.push(Number(text) / Number(periods[i])),
  );
  const limits = cpuLimits.filter((share) => share > 0);
  return limits.length > 0 ? Math.min(...limits) : undefined;
}

/** Reads `file` in this process's control group and all of its ancestors. `controller` is "" for version 2. */
function readCgroupFiles(system: System, controller: string, file: string): readonly string[] {
  const group = (system.readFile("/proc/self/cgroup") ?? "")
    .split("\n")
    .map((line) => line.split(":"))
    .find(([, controllers]) => controllers?.split(",").includes(controller))?.[2];
  if (group === undefined) return [];
  const cgroupSegments = group.split("/").filter(Boolean);
  const directories = cgroupSegments.map((_, depth) => cgroupSegments.slice(0, depth + 1).join("/"));
  return ["", ...directories].flatMap((directory) => {
    const path = ["/sys/fs/cgroup", controller, directory, file].filter(Boolean).join("/");
    return system.readFile(path) ?? [];
  });
}

const LOW_MEMORY_BYTES = 2e9;

export const memoryCheck: Check = {
  name: "memory",
  run(system) {
    const { total, free } = system.memory;
    const limit = findMemoryLimit(system);
    const isLimited = limit !== undefined && limit < total;
    const text = `${formatGigabytes(total)}, ${formatGigabytes(free)} free${isLimited ? `, limited to ${formatGigabytes(limit)} by the control group` : ""}`;
    if (Math.min(total, limit ?? total) >= LOW_MEMORY_BYTES) return [createOk(text)];
    return [createNote(text, "low: raise the memory limit of the container or the job")];
  },
};

/** Shared memory that NCCL requires for a rank and its peers on a host, with a margin. */
const NCCL_SHARED_MEMORY_BYTES = 1e9;

/**
 * Checks /dev/shm, which NCCL uses. Mosaic's own collectives do not use it, because their shared memory is anonymous.
 */
export const sharedMemoryCheck: Check = {
  name: "shared memory",
  async run(system) {
    const diskSpace = system.getDiskSpace("/dev/shm");
    const remedy = "start the container with --shm-size=8g or --ipc=host; on a host, mount -o remount,size=8g /dev/shm";
    const cuda = await system.runProbe("cuda");
    const isNeeded = "value" in cuda && cuda.value.gpus.length > 1;
    if (diskSpace === undefined)
      return [(isNeeded ? createProblem : createNote)("/dev/shm does not exist, but NCCL requires it", remedy)];
    const text = `/dev/shm of ${formatGigabytes(diskSpace.total)}, ${formatGigabytes(diskSpace.free)} free`;
    if (diskSpace.free >= NCCL_SHARED_MEMORY_BYTES) return [createOk(text)];
    if (isNeeded)
      return [createProblem(`${text}: NCCL fails between GPUs of this host with less than about 1 GB`, remedy)];
    return [createNote(`${text}: sufficient here, but low for NCCL`, remedy)];
  },
};

const LOW_FILE_LIMIT = 4096;

export const resourceLimitsCheck: Check = {
  name: "limits",
  run(system) {
    const openFileLimit = readLimit(system, "Max open files");
    const lockedMemoryLimit = readLimit(system, "Max locked memory");
    if (openFileLimit === undefined || lockedMemoryLimit === undefined) return [];
    const findings: Finding[] = [
      createOk(
        `${formatLimitValue(openFileLimit)} open files, ${formatLimitValue(lockedMemoryLimit)} bytes of locked memory`,
      ),
    ];
    if (openFileLimit < LOW_FILE_LIMIT)
      findings.push(createNote("the limit on open files is low for many ranks", `ulimit -n ${LOW_FILE_LIMIT}`));
    if (listRdmaDevices(system).length > 0 && lockedMemoryLimit !== Number.POSITIVE_INFINITY) {
      findings.push(
        createNote("the limit on locked memory is low for RDMA, which registers memory", "ulimit -l unlimited"),
      );
    }
    return findings;
  },
};

/** Returns the soft limit of a name. */
function readLimit({ readFile }: System, name: string): number | undefined {
  const limitText = new RegExp(`^${name}\\s+(\\S+)`, "m").exec(readFile("/proc/self/limits") ?? "")?.[1];
  if (limitText === undefined) return undefined;
  return limitText === "unlimited" ? Number.POSITIVE_INFINITY : Number(limitText);
}

const formatLimitValue = (limit: number): string => (limit === Number.POSITIVE_INFINITY ? "unlimited" : String(limit));

export const networkCheck: Check = {
  name: "network",
  run(system) {
    const { interfaces } = system;
    const ports = listRdmaPorts(system);
    const [activePorts, inactivePorts] = [
      ports.filter(({ isActive }) => isActive),
      ports.filter(({ isActive }) => !isActive),
    ];
    const interfaceText = interfaces.length > 0 ? interfaces.join(", ") : "no interface except the loopback";
    return [
      createOk(interfaceText),
      ...(activePorts.length > 0
        ? [createOk(`RDMA: ${activePorts.map(({ name, speed }) => `${name} (${speed})`).join("; ")}`)]
        : []),
      ...inactivePorts.map(({ name, speed }) =>
        createNote(`RDMA port ${name} is not active (${speed})`, "check its cable and subnet manager"),
      ),
    ];
  },
};

/** Checks whether this process is a rank of a job, and whether its environment is consistent. */
export const jobCheck: Check = {
  name: "job",
  async run(system) {
    const { env } = system;
    const detectedLauncher = detectLauncher(env);
    const findings: Finding[] = [];
    const { environment: launchEnv, error: launchError } = readLaunchEnvironment(env);
    if (launchEnv?.launcher !== undefined) {
      const { rank, worldSize, localRank: localRankText, localWorldSize: ranks = "?" } = launchEnv;
      const placeText = localRankText === undefined ? "" : `, ${localRankText} of ${ranks} on this host`;
      findings.push(
        createOk(`rank ${rank} of ${worldSize}${placeText}, started by ${detectedLauncher ?? launchEnv.launcher}`),
      );
    } else if (launchError !== undefined)
      findings.push(createProblem(launchError, "start ranks with mosaic-run, or correct the environment variables"));
    else if (detectedLauncher !== undefined)
      findings.push(createOk(`${detectedLauncher}, but this process is not one of its ranks`));
    if (launchEnv?.launcher === undefined && Number(env["SLURM_NTASKS"] ?? 1) > 1) {
      findings.push(
        createNote(
          "the SLURM job has several tasks, but this process is not one of them",
          "start ranks with srun, or mosaic-run with srun on every node",
        ),
      );
    }
    const cuda = await system.runProbe("cuda");
    const gpus = "value" in cuda ? cuda.value.gpus.length : 0;
    const localRanks = launchEnv?.localWorldSize ?? 1;
    if (gpus > 0 && localRanks > gpus && !environmentFlag("MOSAIC_SHARE_GPUS", env)) {
      findings.push(
        createNote(
          `${localRanks} ranks on this host, but ${gpus} visible GPUs`,
          "start one rank per GPU with mosaic-run --nproc-per-node gpu; with SLURM, pass --gpus-per-node instead of --gpus-per-task; or set MOSAIC_SHARE_GPUS=1",
        ),
      );
    }
    return findings;
  },
};

/** Reads the launch environment. Incomplete or contradictory variables are returned as an error. */
function readLaunchEnvironment(env: NodeJS.ProcessEnv): {
  readonly environment?: LaunchEnvironment;
  readonly error?: string;
} {
  try {
    return { environment: launchEnvironment(env) };
  } catch (error) {
    return { error: (error as Error).message };
  }
}

function detectLauncher(env: NodeJS.ProcessEnv): string | undefined {
  if (env["MOSAIC_RUN_ID"]) return `mosaic-run (${env["MOSAIC_RUN_ID"]})`;
  if (env["TORCHELASTIC_RUN_ID"]) return "torchrun";
  return env["SLURM_JOB_ID"] ? `SLURM job ${env["SLURM_JOB_ID"]}` : undefined;
}

/** Reports settings from environment variables. */
export const environmentCheck: Check = {
  name: "settings",
  run({ env }) {
    const environmentSettings = Object.entries(env)
      .filter(([name]) => /^(MOSAIC|NCCL)_/.test(name) && !/TOKEN|STORE/.test(name))
      .map(([name, value]) => `${name}=${value}`)
      .sort();
    return environmentSettings.length > 0 ? [createOk(environmentSettings.join(" "))] : [];
  },
};
