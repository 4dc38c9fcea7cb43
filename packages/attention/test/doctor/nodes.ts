// Runs mosaic-doctor --hosts under one launcher for each node of a job.
import { execFile } from "node:child_process";
import { randomBytes } from "node:crypto";
import { fileURLToPath } from "node:url";

const joinPath = (path: string): string => fileURLToPath(new URL(path, import.meta.url));
const launcher = joinPath("../../../launcher/bin/mosaic-run.js");
const doctor = joinPath("../../bin/mosaic-doctor.js");
export const shiftClock: string = joinPath("shift-clock.mjs");
const planCommand = joinPath("../../../strategies/bin/mosaic-plan.js");

/** The exit code and output of a command. */
export interface ProcessResult {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

/** A job, with the environment and the launcher command of each node. */
export interface DoctorJob {
  readonly nodes: number;
  readonly endpoint?: string;
  readonly ranks?: number;
  readonly args?: readonly string[];
  env?(node: number): Readonly<Record<string, string>>;
  command?(node: number): readonly string[];
}

function runProcess(command: readonly string[], env: Readonly<Record<string, string>>): Promise<ProcessResult> {
  const { MOSAIC_TEST_HOSTS: _, NODE_OPTIONS: __, ...inheritedEnv } = process.env;
  const [program, ...args] = command as [string, ...string[]];
  return new Promise((resolve) => {
    execFile(program, args, { env: { ...inheritedEnv, ...env }, timeout: 100_000 }, (error, stdout, stderr) => {
      resolve({ code: error ? Number(error.code ?? -1) : 0, stdout, stderr });
    });
  });
}

/** Runs the doctor on all nodes. Resolves to the result of each launcher. */
export async function runDoctor({
  nodes,
  endpoint,
  ranks = 1,
  args = [],
  ...nodeJob
}: DoctorJob): Promise<ProcessResult[]> {
  const secret = randomBytes(32).toString("hex");
  return await Promise.all(
    Array.from({ length: nodes }, (_, node) => {
      const multiNodeOptions = ["-N", String(nodes), "--node-rank", String(node), "--rdzv-endpoint", endpoint ?? ""];
      const options = [
        ...(nodes > 1 ? multiNodeOptions : []),
        "-n",
        String(ranks),
        "--log-prefix",
        "",
        "--threads",
        "1",
      ];
      const entryArgs = ["--exec", process.execPath, doctor, "--hosts", ...args];
      const command = [...(nodeJob.command?.(node) ?? []), process.execPath, launcher, ...options, ...entryArgs];
      return runProcess(command, {
        MOSAIC_DEVICE: "",
        ...(nodes > 1 && { MOSAIC_TOKEN: secret }),
        ...nodeJob.env?.(node),
      });
    }),
  );
}

/** Runs mosaic-plan on a profile. */
export function runPlan(path: string, ranksPerNode: number): Promise<ProcessResult> {
  const shape = ["--tokens", "4k", "--heads", "4", "--head-dim", "64", "--nodes", "2", "--simulate", "1", "--json"];
  const options = ["--gpus-per-node", String(ranksPerNode), "--profile", path];
  return runProcess([process.execPath, planCommand, ...shape, ...options], {});
}
