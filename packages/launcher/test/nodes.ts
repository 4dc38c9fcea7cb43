import { randomBytes } from "node:crypto";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { INDEX, mosaicRun, type ProcessOutcome, program, type RunningProcess, testDir } from "./harness.ts";

/** The secret of all jobs. */
export const SECRET: string = randomBytes(32).toString("hex");
let nextPort = 21_000 + (process.pid % 1000) * 10;

/** Returns the port of the endpoint of the job that was created last. */
export const lastJobPort = (): number => nextPort - 1;

/** Creates a job with an endpoint that no other test uses. Returns the function that starts its launchers. */
export function job(): (
  rank: number | undefined,
  options: readonly string[],
  entry: readonly string[],
  env?: Env,
) => RunningProcess {
  const endpoint = `127.0.0.9:${nextPort++}`;
  const token = join(testDir(), "token");
  writeFileSync(token, `${SECRET}\n`, { mode: 0o600 });
  return (rank, options, entry, env = {}) =>
    mosaicRun(
      [...(rank === undefined ? [] : ["--node-rank", String(rank)]), "--rdzv-endpoint", endpoint, ...options, ...entry],
      { env: { TEST_INDEX: INDEX, MOSAIC_TOKEN_FILE: token, ...env } },
    );
}

/** Environment variables of a launcher. */
export type Env = Readonly<Record<string, string | undefined>>;

/** Waits until all launchers have exited. Resolves to their outcomes. */
export const waitForOutcomes = (nodes: readonly RunningProcess[]): Promise<ProcessOutcome[]> =>
  Promise.all(nodes.map(({ outcome }) => outcome));
export const listExitCodes = (nodeOutcomes: readonly ProcessOutcome[]): (number | null)[] =>
  nodeOutcomes.map(({ code }) => code);
export const splitLines = ({ stdout }: ProcessOutcome): string[] => stdout.trim().split("\n").toSorted();
export const scriptArgs = (...args: string[]): string[] => [program("node.mjs"), ...args];
