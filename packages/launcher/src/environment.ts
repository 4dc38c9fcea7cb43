import type { Assignment } from "./coordinator.ts";
import { UsageError } from "./errors.ts";
import type { LaunchPlan } from "./launch-plan.ts";
import { attemptTraceDirectory } from "./output/trace-page.ts";
import { TOKEN_VARIABLE } from "./secret.ts";

/**
 * The variable that marks all processes started by one launcher. Launchers of several nodes may run on the same
 * machine.
 */
export const LAUNCHER_ID_VARIABLE = "MOSAIC_LAUNCHER_ID";

/** Returns the variables that the launcher guarantees to one rank: torchrun's names where they exist, else MOSAIC_*. */
export function rankVariables(
  plan: LaunchPlan,
  assignment: Assignment,
  localRank: number,
  errorFile: string,
): Readonly<Record<string, string>> {
  const rank = String(assignment.firstRank + localRank);
  const worldSize = String(assignment.worldSize);
  return {
    RANK: rank,
    LOCAL_RANK: String(localRank),
    WORLD_SIZE: worldSize,
    LOCAL_WORLD_SIZE: String(plan.nproc),
    GROUP_RANK: String(assignment.groupRank),
    GROUP_WORLD_SIZE: String(assignment.groupWorldSize),
    ROLE_NAME: plan.role,
    ROLE_RANK: rank,
    ROLE_WORLD_SIZE: worldSize,
    MASTER_ADDR: assignment.host,
    MASTER_PORT: String(assignment.port),
    TORCHELASTIC_RUN_ID: plan.rdzvId,
    TORCHELASTIC_RESTART_COUNT: String(assignment.attempt),
    TORCHELASTIC_MAX_RESTARTS: String(plan.maxRestarts),
    TORCHELASTIC_ERROR_FILE: errorFile,
    MOSAIC_RUN_ID: assignment.runId,
    [LAUNCHER_ID_VARIABLE]: plan.runId,
    MOSAIC_ATTEMPT: String(assignment.attempt),
    MOSAIC_NODE_ADDR: assignment.nodeAddress,
    MOSAIC_STORE: assignment.store,
    MOSAIC_TOKEN_FILE: assignment.tokenFile,
    MOSAIC_AGENT: assignment.agent,
    MOSAIC_THREADS: plan.threads,
    ...(plan.traceDir === undefined ? {} : { MOSAIC_TRACE_DIR: attemptTraceDirectory(plan.traceDir, assignment) }),
  };
}

/**
 * Returns the complete environment of a rank: the launcher's environment, then `--env`, then the launcher's variables.
 * Later values override earlier ones. Throws UsageError if `--env` sets a variable of the launcher other than
 * MOSAIC_THREADS.
 */
export function createRankEnvironment(
  plan: LaunchPlan,
  launcherVariables: Readonly<Record<string, string>>,
  launcherEnvironment: NodeJS.ProcessEnv = process.env,
): NodeJS.ProcessEnv {
  const reservedName = Object.keys(plan.env).find((name) => name in launcherVariables && name !== "MOSAIC_THREADS");
  if (reservedName !== undefined)
    throw new UsageError(`--env ${reservedName}: the launcher sets ${reservedName} itself; omit the option`);
  // Ranks read the secret from MOSAIC_TOKEN_FILE. Their child processes must not inherit it.
  const { [TOKEN_VARIABLE]: _, ...inheritedVariables } = launcherEnvironment;
  const color = plan.color && inheritedVariables.NO_COLOR === undefined && inheritedVariables.FORCE_COLOR === undefined;
  return { ...inheritedVariables, ...(color ? { FORCE_COLOR: "1" } : {}), ...plan.env, ...launcherVariables };
}
