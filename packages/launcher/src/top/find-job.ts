import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { basename, resolve } from "node:path";
import { UsageError } from "../errors.ts";
import { ignoreErrors } from "../ignore-errors.ts";
import { readProcessEnvironments } from "../ranks/process-table.ts";
import { TOKEN_FILE_VARIABLE } from "../secret.ts";

/** A running job and the address of its control plane. */
export interface RunningJob {
  /** The run id, or the socket of a job that was selected by its socket and was not found by its ranks. */
  readonly id: string;
  /** Socket of the agent on this host. */
  readonly socket: string;
  readonly tokenFile: string | undefined;
}

/**
 * Returns this user's jobs on this host that mosaic-run has started, from the environments of their ranks. Requires
 * /proc.
 */
function findRunningJobs(): readonly RunningJob[] {
  const jobs = new Map<string, RunningJob>();
  // If several launchers of one job run on this host, the agent of the first node is used.
  const environmentsInNodeOrder = readProcessEnvironments().toSorted(
    (a, b) => Number(a.GROUP_RANK ?? 0) - Number(b.GROUP_RANK ?? 0),
  );
  for (const { MOSAIC_RUN_ID: id, MOSAIC_AGENT: socket, [TOKEN_FILE_VARIABLE]: tokenFile } of environmentsInNodeOrder)
    if (id && socket && !jobs.has(id) && existsSync(socket)) jobs.set(id, { id, socket, tokenFile });
  return [...jobs.values()];
}

/**
 * Finds the job for a run id or its prefix, a log directory or its parent directory, or a socket; without a text, the
 * only running job. Throws UsageError, which lists the running jobs, if there is not exactly one match.
 */
export function findJob(jobText: string | undefined, jobs: readonly RunningJob[] = findRunningJobs()): RunningJob {
  if (jobText === undefined) return requireSingleJob(jobs, "expected a run id", "none");
  const kind = classifyPath(jobText);
  if (kind === "socket") {
    const socket = resolve(jobText);
    const runningJob = jobs.find((job) => job.socket === socket);
    return runningJob ?? { id: socket, socket, tokenFile: process.env[TOKEN_FILE_VARIABLE] || undefined };
  }
  const names = kind === "directory" ? [basename(resolve(jobText)), ...readdirSync(jobText)] : [jobText];
  const exactMatches = jobs.filter(({ id }) => names.includes(id));
  const matches =
    exactMatches.length > 0 || kind === "directory" ? exactMatches : jobs.filter(({ id }) => id.startsWith(jobText));
  return requireSingleJob(matches, "expected a running job", `"${jobText}"`, jobs);
}

function requireSingleJob(
  matches: readonly RunningJob[],
  expected: string,
  received: string,
  candidates: readonly RunningJob[] = matches,
): RunningJob {
  const [job] = matches;
  if (job !== undefined && matches.length === 1) return job;
  const ids = (matches.length > 1 ? matches : candidates).map(({ id }) => id);
  const runningJobsText =
    ids.length === 0
      ? "no mosaic-run job of this user is running on this host; for another user's job, pass the agent's socket"
      : `running jobs: ${ids.join(", ")}`;
  throw new UsageError(`${expected}, received ${received}; ${runningJobsText}`);
}

function classifyPath(path: string): "socket" | "directory" | "other" {
  const stat = ignoreErrors(() => statSync(path));
  return stat?.isSocket() ? "socket" : stat?.isDirectory() ? "directory" : "other";
}

/** Returns the secret for connections to the job; empty if there is none. */
export function readJobSecret({ tokenFile }: RunningJob): string {
  if (tokenFile === undefined) return "";
  try {
    return readFileSync(tokenFile, "utf8").trim();
  } catch (error) {
    throw new UsageError(`the job's secret cannot be read: ${(error as Error).message}; has the job ended?`);
  }
}
