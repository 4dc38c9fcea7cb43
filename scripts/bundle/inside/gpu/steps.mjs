import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { librariesOfPython } from "./libraries.mjs";

/** Mistakes are planted and registers counted by compilers; neither needs a GPU. */
const NOT_FOR_GPUS = ["--exclude", "test/faults.test.ts", "--exclude", "test/budgets.test.ts"];

/** What the benchmarks' own budgets add up to, and what it takes to start and to report. */
const BENCHMARK_SECONDS = 500;

/**
 * What there is to do on a machine with a GPU: `{ name, about, seconds, folder, command, env }`, or `skip` with the reason. One
 * without `seconds` takes what time is left, and `within` says what to add to its command then.
 */
export function stepsFor(root, out, base = process.env) {
  const node = process.execPath;
  const vitest = [node, join(root, "node_modules/vitest/vitest.mjs"), "run"];
  const sanitizer = programNamed("compute-sanitizer");
  const gpu = {
    MOSAIC_TEST_GPU: "1",
    // Tests take the emulated driver where nobody names one.
    MOSAIC_CUDA_LIBRARY: base.MOSAIC_CUDA_LIBRARY ?? "libcuda.so.1",
    MOSAIC_DEVICE: "cuda",
    MOSAIC_SHARE_GPUS: "1",
    ...librariesOfPython(base),
  };
  const sanitize = (tool) => ({
    about: `the tensor-core kernels under compute-sanitizer's ${tool}`,
    seconds: 90,
    folder: "packages/kernels-cuda",
    command: [
      sanitizer,
      "--tool",
      tool,
      "--target-processes",
      "all",
      "--error-exitcode",
      "9",
      ...vitest,
      "test/tensor-cores.test.ts",
    ],
    ...(sanitizer === undefined && { skip: "there is no compute-sanitizer" }),
  });
  const demo = ["--device", "cuda", "--ranks", "4", "--dtype", "bfloat16", "--causal", "--backward", "--svg", ""];
  const steps = [
    {
      name: "host",
      about: "nvidia-smi",
      seconds: 20,
      command: ["nvidia-smi"],
      ...(programNamed("nvidia-smi") === undefined && { skip: "there is no nvidia-smi" }),
    },
    {
      name: "doctor",
      about: "mosaic-doctor",
      seconds: 90,
      command: [node, join(root, "packages/attention/bin/mosaic-doctor.js")],
    },
    {
      name: "kernels",
      about: "tests of kernels-cuda",
      seconds: 180,
      folder: "packages/kernels-cuda",
      command: [...vitest, ...NOT_FOR_GPUS],
    },
    {
      name: "collectives",
      about: "tests of collectives-nccl",
      seconds: 180,
      folder: "packages/collectives-nccl",
      command: vitest,
    },
    {
      name: "demo",
      about: "four ranks over a genome, beside one",
      seconds: 60,
      command: [node, join(root, "apps/quickstart/dist/main.js"), ...demo],
    },
    { name: "memcheck", ...sanitize("memcheck") },
    { name: "racecheck", ...sanitize("racecheck") },
    {
      name: "benchmarks",
      about: "attention beside PyTorch's, ring",
      command: [node, join(root, "benchmarks/dist/gpu.js"), "--out", out, ...(hasTorch() ? [] : ["--peer", "none"])],
      within: (seconds) => ["--share", Math.min(1, seconds / BENCHMARK_SECONDS).toFixed(2)],
    },
  ];
  return steps.map(({ folder = ".", skip, ...step }) => {
    const dir = join(root, folder);
    const missing = existsSync(dir) ? undefined : `there is no ${folder}`;
    return { ...step, folder: dir, env: { ...base, ...gpu }, ...((skip ?? missing) && { skip: skip ?? missing }) };
  });
}

function hasTorch() {
  return spawnSync("python3", ["-c", "import importlib.util as u; exit(u.find_spec('torch') is None)"]).status === 0;
}

/** On the PATH, or where NVIDIA installs it. */
function programNamed(name) {
  const { stdout } = spawnSync("sh", ["-c", `command -v ${name}`], { encoding: "utf8" });
  const usual = `/usr/local/cuda/bin/${name}`;
  return stdout?.trim() || (existsSync(usual) ? usual : undefined);
}
