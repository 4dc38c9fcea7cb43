import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { findPythonLibraries } from "./libraries.mjs";

/** Tests of the emulation, of compiler reports and of failures, which use no GPU. Some need a compiler. */
const CPU_ONLY_TESTS = [
  "faults",
  "budgets",
  "errors",
  "ladder",
  "system",
  "lifetime",
  "library-search-paths",
  "refusal",
];
/** Tests of every kernel that uses tensor cores, on small inputs. */
const SANITIZER_TESTS = ["test/tensor-cores.test.ts"];
/** Sum of the benchmarks' time budgets, plus time to start and to report. */
const BENCHMARK_SECONDS = 500;

/**
 * Returns the steps for a machine with a GPU: `{ name, about, seconds, directory, command, env }`, or `skip` with the
 * reason. A step without `seconds` uses the remaining time. Its `within` returns the arguments to append for this time.
 */
export function createSteps(root, out, baseEnvironment = process.env) {
  const env = {
    ...baseEnvironment,
    MOSAIC_TEST_GPU: "1",
    MOSAIC_DEVICE: "cuda",
    MOSAIC_SHARE_GPUS: "1",
    // Ranks that share a GPU communicate through this machine's network.
    NCCL_SOCKET_IFNAME: baseEnvironment.NCCL_SOCKET_IFNAME ?? "lo",
    ...findPythonLibraries(baseEnvironment),
  };
  const steps = [
    ...createHostSteps(root),
    ...createTestSteps(root),
    ...createSanitizerSteps(root),
    createBenchmarkStep(root, out),
  ];
  return steps.map(({ directory = ".", env: stepEnvironment, skip, ...step }) => {
    const dir = join(root, directory);
    const skipReason = existsSync(dir) ? skip : `${directory} was not found`;
    return { ...step, directory: dir, env: { ...env, ...stepEnvironment }, ...(skipReason && { skip: skipReason }) };
  });
}

function createHostSteps(root) {
  const skipReason = findProgram("nvidia-smi") === undefined && "nvidia-smi was not found";
  const doctorCommand = [process.execPath, join(root, "packages/attention/bin/mosaic-doctor.js")];
  return [
    {
      name: "host",
      about: "nvidia-smi",
      seconds: 20,
      command: ["nvidia-smi"],
      ...(skipReason && { skip: skipReason }),
    },
    { name: "doctor", about: "mosaic-doctor", seconds: 90, command: doctorCommand },
  ];
}

function createTestSteps(root) {
  const testCommand = vitestCommand(root);
  const excludeOptions = CPU_ONLY_TESTS.flatMap((name) => ["--exclude", `test/${name}.test.ts`]);
  const demoArgs = ["--device", "cuda", "--ranks", "4", "--dtype", "bfloat16", "--causal", "--backward", "--svg", ""];
  const [cuda, nccl, ring] = ["kernels-cuda", "collectives-nccl", "backend-ring"].map((name) => `packages/${name}`);
  return [
    {
      name: "kernels",
      about: "tests of kernels-cuda",
      seconds: 180,
      directory: cuda,
      command: [...testCommand, ...excludeOptions],
    },
    {
      name: "portable",
      about: "tensor-core tests without Hopper kernels",
      seconds: 60,
      directory: cuda,
      command: [...testCommand, ...SANITIZER_TESTS],
      env: { MOSAIC_CUDA_FAMILY: "portable" },
    },
    { name: "collectives", about: "tests of collectives-nccl", seconds: 180, directory: nccl, command: testCommand },
    {
      name: "ring",
      about: "ring attention over four processes",
      seconds: 60,
      directory: ring,
      command: [...testCommand, "test/gpu"],
    },
    {
      name: "demo",
      about: "attention over a genome on four ranks, compared with one device",
      seconds: 60,
      command: [process.execPath, join(root, "apps/quickstart/dist/main.js"), ...demoArgs],
    },
  ];
}

/** Returns the sanitizer steps. They include child processes, because vitest forks a process for the tests. */
function createSanitizerSteps(root) {
  const program = findProgram("compute-sanitizer");
  const options = ["--target-processes", "all", "--error-exitcode", "9"];
  return ["memcheck", "racecheck"].map((tool) => ({
    name: tool,
    about: `tensor-core tests under compute-sanitizer ${tool}`,
    seconds: 90,
    directory: "packages/kernels-cuda",
    command: [program, "--tool", tool, ...options, ...vitestCommand(root), ...SANITIZER_TESTS],
    ...(program === undefined && { skip: "compute-sanitizer was not found" }),
  }));
}

function createBenchmarkStep(root, out) {
  const peerOptions = hasTorch() ? [] : ["--peer", "none"];
  return {
    name: "benchmarks",
    about: "benchmarks of attention against PyTorch SDPA, and of ring attention",
    command: [process.execPath, join(root, "benchmarks/dist/gpu.js"), "--out", out, ...peerOptions],
    within: (seconds) => ["--share", Math.min(1, seconds / BENCHMARK_SECONDS).toFixed(2)],
  };
}

const vitestCommand = (root) => [process.execPath, join(root, "node_modules/vitest/vitest.mjs"), "run"];

function hasTorch() {
  return spawnSync("python3", ["-c", "import importlib.util as u; exit(u.find_spec('torch') is None)"]).status === 0;
}

/** Finds a program on the PATH or in NVIDIA's default directory. */
function findProgram(name) {
  const { stdout } = spawnSync("sh", ["-c", `command -v ${name}`], { encoding: "utf8" });
  const defaultPath = `/usr/local/cuda/bin/${name}`;
  return stdout?.trim() || (existsSync(defaultPath) ? defaultPath : undefined);
}
