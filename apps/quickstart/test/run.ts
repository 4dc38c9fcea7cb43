import { spawn } from "node:child_process";
import { fileURLToPath } from "node:url";

const main = fileURLToPath(new URL("../dist/main.js", import.meta.url));

const resolvePackagePath = (path: string): string =>
  fileURLToPath(new URL(`../../../packages/${path}`, import.meta.url));
/** Libraries that emulate the CUDA driver, with one GPU, and NCCL. */
const emulatedLibraries = {
  MOSAIC_CUDA_LIBRARY: resolvePackagePath("kernels-cuda/build-emulated/libcuda_emulated.so"),
  MOSAIC_NCCL_LIBRARY: resolvePackagePath("collectives-nccl/build-emulated/libnccl_emulated.so"),
};

/** Output and exit code of the program. */
export interface ProcessResult {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** Runs the built program like a user, who presses Ctrl-C as soon as it prints `interruptAt`. */
export async function run(
  args: readonly string[],
  env: Readonly<Record<string, string>> = {},
  interruptAt?: string,
): Promise<ProcessResult> {
  const fullEnv = { ...process.env, ...emulatedLibraries, ...env };
  const child = spawn(process.execPath, [main, ...args], { stdio: ["ignore", "pipe", "pipe"], env: fullEnv });
  let [stdout, stderr] = ["", ""];
  child.stdout.setEncoding("utf8").on("data", (data: string) => (stdout += data));
  let isInterrupted = interruptAt === undefined;
  child.stderr.setEncoding("utf8").on("data", (data: string) => {
    stderr += data;
    if (isInterrupted || !stderr.includes(interruptAt!)) return;
    isInterrupted = child.kill("SIGINT");
  });
  const code = await new Promise<number | null>((resolve) => child.on("close", resolve));
  return { code, stdout, stderr };
}

/** Returns the object that `--json` prints as the last line. */
export function parseSummary({ stdout }: ProcessResult): Readonly<Record<string, number | string | boolean | null>> {
  return JSON.parse(stdout.trimEnd().split("\n").at(-1)!) as Record<string, number | string | boolean | null>;
}
