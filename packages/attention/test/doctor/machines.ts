import type { ProbeValues } from "../../src/doctor/system.ts";
import type { ProbeResult, System } from "../../src/doctor/system.ts";

type ProbeAnswers = { readonly [Name in keyof ProbeValues]: ProbeResult<ProbeValues[Name]> };

/** Overrides of the default machine. Files and answers are added to its own. */
export interface MachineOverrides extends Partial<Omit<System, "runProbe">> {
  readonly files?: Readonly<Record<string, string>>;
  readonly answers?: Partial<ProbeAnswers>;
  readonly missing?: readonly string[];
}

const files: Readonly<Record<string, string>> = {
  "/etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n',
  "/proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC 9654\n",
  "/proc/self/limits":
    "Max open files            1048576  1048576  files\nMax locked memory         unlimited  unlimited  bytes\n",
  "/proc/self/cgroup": "0::/job/step\n",
};

/** The error of kernels-cuda if dlopen finds no driver. */
export const noDriverAnswer = {
  error: {
    name: "DeviceError",
    message: "no CUDA driver: cannot load libcuda.so.1 (no such file). Install NVIDIA's driver; start with --gpus all",
  },
};

const noNcclAnswer = {
  error: { name: "DeviceError", message: "nccl: expected NCCL, received none; install NCCL 2.18 or newer" },
};

const answers: ProbeAnswers = {
  cpu: { value: { isa: "avx512", supported: ["scalar", "avx2", "avx512"], threads: 8 } },
  ranks: { value: 12 },
  cuda: noDriverAnswer,
  gpus: noDriverAnswer,
  nccl: noNcclAnswer,
  ucx: { error: { name: "AddonLoadError", message: "ucx: no usable UCX library: no file; install UCX 1.13 or newer" } },
};

/** Creates the probe answers of a machine with `count` H200 GPUs. */
export function createH200Answers(count: number, problem?: string): Pick<ProbeAnswers, "cuda" | "gpus"> {
  const gpu = { name: "NVIDIA H200", capability: "9.0", bytes: 150e9, ...(problem && { problem }) };
  const gpus = Array.from({ length: count }, () => gpu);
  const cuda = { value: { driver: "13.0", library: "libcuda.so.1", gpus } };
  return { cuda, gpus: { value: gpus.map(() => 6) } };
}

/** Creates a healthy machine without a GPU and with all packages installed, with overrides. */
export function createMachine(overrides: MachineOverrides = {}): System {
  const allFiles = { ...files, ...overrides.files };
  const probeAnswers = { ...answers, ...overrides.answers };
  const listBelow = (path: string): readonly string[] =>
    Object.keys(allFiles).flatMap((file) =>
      file.startsWith(`${path}/`) ? [file.slice(path.length + 1).split("/")[0]!] : [],
    );
  return {
    env: {},
    node: { version: "20.20.2", platform: "linux-x64", glibc: "2.39" },
    release: "6.8.0",
    cores: 8,
    memory: { total: 128e9, free: 120e9 },
    interfaces: ["eth0 (192.0.2.1)"],
    exists: (path) => path in allFiles,
    readFile: (path) => allFiles[path],
    listDirectory: (path) => [...new Set(listBelow(path))],
    getDiskSpace: () => ({ total: 64e9, free: 64e9 }),
    runCommand: () => undefined,
    version: (name) => (overrides.missing?.includes(name) ? undefined : "0.1.0"),
    runProbe: (async (probe) => probeAnswers[probe]) as System["runProbe"],
    ...overrides,
  };
}
