import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import manifest from "../package.json" with { type: "json" };
import { diagnose, formatReport } from "../src/doctor/diagnose.ts";
import { currentSystem } from "../src/doctor/system.ts";
import { type MachineOverrides, createH200Answers, createMachine, noDriverAnswer } from "./doctor/machines.ts";

const diagnoseMachine = async (overrides: MachineOverrides): Promise<string> =>
  formatReport(await diagnose(createMachine(overrides)));
const nvidiaFiles = { files: { "/dev/nvidiactl": "" } };
const ncclProbe = { value: { version: "2.27.3", library: "libnccl.so.2", settings: {} } };
const eightGpusWithNvlink = [
  "\tGPU0\tGPU1\tGPU2\tCPU Affinity",
  "GPU0\t X \tNV18\tNV18\t0-31",
  "GPU1\tNV18\t X \tNV18\t0-31",
  "GPU2\tNV18\tNV18\t X \t0-31",
].join("\n");

describe("a healthy machine", () => {
  it("has notes and no problems without a GPU", async () => {
    expect(await diagnoseMachine({})).toBe(
      `✓ Node           20.20.2, linux-x64, glibc 2.39
✓ system         Ubuntu 24.04.3 LTS, Linux 6.8.0
✓ processor      AMD EPYC 9654, 8 cores, kernels for avx512
✓ memory         128.0 GB, 120.0 GB free
✓ shared memory  /dev/shm of 64.0 GB, 64.0 GB free
✓ limits         1048576 open files, unlimited bytes of locked memory
✓ packages       @mosaic/attention 0.1.0, with @mosaic/launcher, with @mosaic/kernels-cuda, with @mosaic/collectives-nccl, with @mosaic/collectives-ucx
✓                all-reduce of two CPU ranks over shared memory passed
· GPU driver     not found, and no NVIDIA GPU detected: everything runs on the CPU
· NCCL           not required without a GPU
✓ network        eth0 (192.0.2.1)
✓ init()         device "cpu", collectives "local"

all installed packages work; 2 notes`,
    );
  });

  it("has entries for driver, kernels, links and NCCL with GPUs", async () => {
    const module = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n";
    const text = await diagnoseMachine({
      files: { "/proc/driver/nvidia/version": module },
      answers: { ...createH200Answers(3), nccl: ncclProbe },
      runCommand: () => eightGpusWithNvlink,
    });
    expect(text).toContain("✓ GPU driver     580.159.04, for CUDA 13.0, libcuda.so.1");
    expect(text).toContain("2: NVIDIA H200, compute capability 9.0, 150.0 GB, kernels sm_90a");
    expect(text).toMatch(/test matmul passed on each GPU\n✓ GPU links      NVLink between all pairs \(NV18\)/);
    expect(text).toContain("✓ NCCL           2.27.3, libnccl.so.2");
    expect(text).toContain(`device "cuda", collectives "nccl"`);
    expect(text).toMatch(/\nall installed packages work$/);
  });
});

const oldAddon = {
  error: { name: "AddonLoadError", message: "cannot load the native CPU device\n  reason: GLIBC_2.38" },
};

describe("problems and notes", () => {
  it.each<readonly [string, MachineOverrides, RegExp]>([
    [
      "an old Node",
      { node: { version: "18.19.0", platform: "linux-x64", glibc: "2.39" } },
      /✗ Node .*\n.*→ install Node 20/,
    ],
    [
      "musl",
      { node: { version: "22.0.0", platform: "linux-x64", glibc: undefined } },
      /✗ Node .*no glibc\n.*→ .*Alpine/,
    ],
    [
      "a missing package",
      { missing: ["@mosaic/nn"] },
      /✗ +@mosaic\/nn is missing\n.*→ npm install @mosaic\/nn@0\.1\.0/,
    ],
    [
      "an addon that does not load",
      { answers: { ranks: oldAddon } },
      /✗ +cannot load the native CPU .*\n.*→ reason: GLIBC_2/,
    ],
    ["a processor that miscalculates", { answers: { ranks: { value: 11 } } }, /✗ .*returned 11, expected 12/],
    [
      "versions that differ",
      { version: (name) => (name.endsWith("nn") ? "0.2.0" : "0.1.0") },
      /✗ .*nn has version 0\.2\.0/,
    ],
    ["a missing driver", nvidiaFiles, /✗ GPU driver +no CUDA driver: .*\n.*→ Install NVIDIA's driver/],
    [
      "a driver that crashes",
      { answers: { cuda: { error: { name: "Crash", message: "the process was killed by SIGSEGV" } } } },
      /✗ GPU driver +the process was killed by SIGSEGV/,
    ],
    [
      "an old GPU",
      { answers: createH200Answers(1, "it is too old") },
      /✗ GPUs +0: NVIDIA H200.*: it is too old\n.*→ .*CUDA_VISIBLE/,
    ],
    ["a GPU that fails", { answers: { ...createH200Answers(1), gpus: noDriverAnswer } }, /✗ +no CUDA driver/],
    [
      "a GPU that miscalculates",
      { answers: { ...createH200Answers(2), gpus: { value: [6, 7] } } },
      /✗ +the test matmul on GPU 1 returned 7, expected 6/,
    ],
    [
      "several GPUs without NCCL",
      { answers: createH200Answers(2) },
      /✗ NCCL +nccl: .*received none\n.*→ install NCCL 2\.18/,
    ],
    [
      "a tiny /dev/shm between GPUs",
      { answers: { ...createH200Answers(2), nccl: ncclProbe }, getDiskSpace: () => ({ total: 64e6, free: 64e6 }) },
      /✗ shared memory +\/dev\/shm of 64\.0 MB.*NCCL fails.*\n.*→ .*--shm-size/,
    ],
    [
      "half of a rank's environment",
      { env: { RANK: "0" } },
      /✗ job +environment variable WORLD_SIZE: expected an integer, because RANK is set/,
    ],
    [
      "a device that does not exist",
      { env: { MOSAIC_DEVICE: "tpu" } },
      /✗ init\(\) +environment variable MOSAIC_DEVICE/,
    ],
  ])("reports %s as a problem", async (_, changes, expected) => {
    const text = await diagnoseMachine(changes);
    expect(text).toMatch(expected);
    expect(text).toMatch(/\n\d+ problems?, \d+ notes?$/);
  });

  const slurmEnv = { SLURM_JOB_ID: "7", SLURM_NTASKS: "8" };
  const sharedEnv = { RANK: "0", WORLD_SIZE: "4", LOCAL_RANK: "0", LOCAL_WORLD_SIZE: "4", MOSAIC_RUN_ID: "ab" };
  const rdmaPortPath = "/sys/class/infiniband/mlx5_0/ports/1";
  const rdmaFiles = {
    [`${rdmaPortPath}/state`]: "1: DOWN\n",
    [`${rdmaPortPath}/rate`]: "400 Gb/sec\n",
    [`${rdmaPortPath}/link_layer`]: "InfiniBand\n",
  };
  it.each<readonly [string, MachineOverrides, RegExp]>([
    [
      "a container's processor time",
      { files: { "/sys/fs/cgroup/job/cpu.max": "150000 100000\n" } },
      /1\.5 pro.*\n.*THREADS=1/,
    ],
    [
      "a container's memory",
      { files: { "/sys/fs/cgroup/memory.max": "1000000000\n" } },
      /· memory .*limited to 1\.0 GB/,
    ],
    [
      "a container's memory, the old way",
      { files: { "/proc/self/cgroup": "4:memory:/d\n", "/sys/fs/cgroup/memory/memory.limit_in_bytes": "500000000\n" } },
      /· memory .*limited to 0\.5 GB/,
    ],
    ["no AVX2", { answers: { cpu: { value: { isa: "scalar", supported: ["scalar"], threads: 1 } } } }, /· +no AVX2/],
    [
      "few open files",
      { files: { "/proc/self/limits": "Max open files  1024\nMax locked memory  64\n" } },
      /→ ulimit -n 4096/,
    ],
    ["a tiny /dev/shm", { getDiskSpace: () => ({ total: 64e6, free: 64e6 }) }, /· shared memory .*low for NCCL/],
    [
      "an adapter that is down",
      { files: rdmaFiles },
      /· +RDMA port mlx5_0\/1 is not active \(400 Gb\/sec, InfiniBand\)/,
    ],
    [
      "a GPU that nothing uses",
      { ...nvidiaFiles, missing: ["@mosaic/kernels-cuda"] },
      /· GPU driver .*\n.*→ npm install @mosaic\/ker/,
    ],
    [
      "GPUs that nothing connects",
      { answers: createH200Answers(2), missing: ["@mosaic/collectives-nccl"] },
      /· NCCL +2 GPUs, but/,
    ],
    ["one GPU without NCCL", { answers: createH200Answers(1) }, /· NCCL .*required only with more than one GPU\n/],
    [
      "a slow pair",
      {
        answers: { ...createH200Answers(3), nccl: ncclProbe },
        runCommand: () => eightGpusWithNvlink.replace("NV18", "SYS"),
      },
      /· GPU links .*1 of 3 .*SYS/,
    ],
    [
      "hidden GPUs",
      { answers: createH200Answers(1), env: { CUDA_VISIBLE_DEVICES: "3" } },
      /· +restricted by CUDA_VISIBLE_DEVICES=3/,
    ],
    [
      "tasks that are not ranks",
      { env: slurmEnv },
      /✓ job +SLURM job 7, but this process is not one of its ranks\n· +the SLURM job has several tasks/,
    ],
    [
      "more ranks than GPUs",
      { env: sharedEnv, answers: { ...createH200Answers(1), nccl: ncclProbe } },
      /rank 0 of 4, 0 of 4 .*mosaic-run[^]*· +4 ranks on/,
    ],
  ])("reports %s as a note", async (_, changes, expected) => {
    const text = await diagnoseMachine(changes);
    expect(text).toMatch(expected);
    expect(text).toMatch(/\nall installed packages work; \d+ notes?$/);
  });

  it.each([
    ["0", true],
    ["1", false],
  ])("reports more ranks than GPUs unless MOSAIC_SHARE_GPUS is on: %s", async (value, isReported) => {
    const answers = { ...createH200Answers(1), nccl: ncclProbe };
    const text = await diagnoseMachine({ env: { ...sharedEnv, MOSAIC_SHARE_GPUS: value }, answers });
    expect(text.includes("4 ranks on this host, but 1 visible GPUs")).toBe(isReported);
  });

  it("runs the other checks after an internal error in one check", async () => {
    const throwingRead = (): never => {
      throw new Error("a seeded fault");
    };
    expect(await diagnoseMachine({ readFile: throwingRead })).toMatch(
      /✓ Node[^]*✗ system +internal error in this check: Error: a seeded fault[^]*✓ network/,
    );
  });
});

const emulatedCuda = fileURLToPath(new URL("../../kernels-cuda/build-emulated/libcuda_emulated.so", import.meta.url));
const emulatedNccl = fileURLToPath(
  new URL("../../collectives-nccl/build-emulated/libnccl_emulated.so", import.meta.url),
);
const bin = fileURLToPath(new URL("../bin/mosaic-doctor.js", import.meta.url));

/** Runs the program as users run it. */
function runDoctorProcess(
  args: readonly string[],
  env: Readonly<Record<string, string>> = {},
): Promise<{ code: number; output: string }> {
  const childEnv = { ...process.env, MOSAIC_DEVICE: "", MOSAIC_NCCL_LIBRARY: "/none/libnccl.so", ...env };
  return new Promise((resolve) => {
    execFile(process.execPath, [bin, ...args], { env: childEnv }, (error, stdout, stderr) => {
      resolve({ code: Number(error?.code ?? 0), output: stdout + stderr });
    });
  });
}

describe("mosaic-doctor", () => {
  it.each<readonly [string, Readonly<Record<string, string>>, number, RegExp]>([
    ["no driver", { MOSAIC_CUDA_LIBRARY: "/none/libcuda.so.1" }, 1, /✗ GPU driver +no CUDA driver: cannot load \/none/],
    ["a driver that is too old", { MOSAIC_EMULATED_DRIVER: "11000" }, 1, /too old: .*\n.*→ Update NVIDIA's driver/],
    [
      "a GPU that is too old",
      { MOSAIC_EMULATED_CAPABILITY: "75" },
      1,
      /✗ GPUs .* 7\.5, .*: .*8\.0 \(Ampere\) or newer is required/,
    ],
    [
      "a GPU",
      { MOSAIC_EMULATED_CAPABILITY: "90" },
      0,
      /kernels sm_90a\n✓ +test matmul passed[^]*init\(\) +device "cuda"/,
    ],
    [
      "GPUs without NCCL",
      { MOSAIC_EMULATED_DEVICES: "2" },
      1,
      /test matmul passed on each GPU[^]*✗ NCCL[^]*device "cpu"[^]*1 problem/,
    ],
  ])("reports %s", async (_, env, code, expected) => {
    const doctorRun = await runDoctorProcess([], { MOSAIC_CUDA_LIBRARY: emulatedCuda, ...env });
    expect(doctorRun).toEqual({ code, output: expect.stringMatching(expected) });
  });

  it("accepts several GPUs with NCCL", async () => {
    const env = { MOSAIC_CUDA_LIBRARY: emulatedCuda, MOSAIC_NCCL_LIBRARY: emulatedNccl, MOSAIC_EMULATED_DEVICES: "2" };
    const { code, output } = await runDoctorProcess([], env);
    expect(output).toMatch(/✓ NCCL +\d+\.\d+\.\d+, .*libnccl_emulated\.so\n[^]*device "cuda", collectives "nccl"/);
    expect(code).toBe(0);
  });

  it("writes JSON with --json", async () => {
    const { code, output } = await runDoctorProcess(["--json"], { MOSAIC_CUDA_LIBRARY: emulatedCuda });
    const jsonReport = JSON.parse(output) as { version: string; problems: number; findings: readonly object[] };
    expect([code, jsonReport.version, jsonReport.problems]).toEqual([0, manifest.version, 0]);
    expect(jsonReport.findings).toContainEqual({ check: "GPUs", level: "ok", text: "test matmul passed" });
  });

  it("prints its help, and rejects unknown arguments", async () => {
    expect(await runDoctorProcess(["--help"])).toEqual({ code: 0, output: expect.stringContaining("--json") });
    expect(await runDoctorProcess(["-V"])).toEqual({ code: 0, output: `${manifest.version}\n` });
    expect(await runDoctorProcess(["--hosts"])).toEqual({
      code: 2,
      output: expect.stringMatching(
        /--hosts: expected the ranks of a job, received a single process; run npx mosaic-run/,
      ),
    });
    expect(await runDoctorProcess(["--ports", "30000-30999"])).toEqual({
      code: 2,
      output: expect.stringMatching(/--ports: expected --hosts as well, .* received "30000-30999" without --hosts/),
    });
    expect(await runDoctorProcess(["--jsno"])).toEqual({
      code: 2,
      output: "mosaic-doctor: Unknown option '--jsno'; mosaic-doctor --help lists all options\n",
    });
    expect(await runDoctorProcess(["--ports", "--json"])).toEqual({
      code: 2,
      output: "mosaic-doctor: Option '--ports' argument is ambiguous; mosaic-doctor --help lists all options\n",
    });
  });
});

describe("a probe", () => {
  it("resolves to an error if its process cannot be started", async () => {
    const { execPath } = process;
    process.execPath = "/nowhere/node";
    const pendingProbe = currentSystem.runProbe("cpu");
    process.execPath = execPath;
    expect(await pendingProbe).toEqual({ error: { name: "Crash", message: expect.stringContaining("ENOENT") } });
  });
});
