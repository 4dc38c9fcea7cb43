import { rankContract, rankEnvironment } from "./environment.ts";
import { placeholderAssignment } from "./launch.ts";
import type { Sourced } from "./options/sources.ts";
import type { LaunchPlan } from "./launch-plan.ts";

/** What a job would be: every option with its source, the command, and what each rank is given. */
export interface DryRun {
  readonly options: Readonly<Record<string, Sourced>>;
  readonly command: readonly string[];
  readonly cwd: string;
  readonly ranks: readonly Readonly<Record<string, string>>[];
}

/** Describes a job without starting it. Nothing is bound, so a port that the system will choose reads `<port>`. */
export function dryRun(plan: LaunchPlan, sources: ReadonlyMap<string, Sourced>): DryRun {
  const port = plan.masterPort === 0 ? "<port>" : String(plan.masterPort);
  const ranks = Array.from({ length: plan.nproc }, (_, local) => {
    const environment = rankContract(plan, placeholderAssignment(plan), local, `<logs>/attempt_0/${local}/error.json`);
    rankEnvironment(plan, environment);
    return {
      ...plan.env,
      ...environment,
      MASTER_PORT: port,
      MOSAIC_STORE: `127.0.0.1:${port}`,
      MOSAIC_RUN_ID: runId(plan),
    };
  });
  const { program, args } = plan.command;
  return { options: Object.fromEntries(sources), command: [program, ...args], cwd: plan.cwd, ranks };
}

const runId = ({ rdzvId }: LaunchPlan): string => (rdzvId === "none" ? "<run id>" : `${rdzvId}-<run id>`);

/** The description as people read it. */
export function dryRunText({ options, command, cwd, ranks }: DryRun): string {
  const rows = Object.entries(options)
    .filter(([name]) => !["help", "version", "dry-run"].includes(name))
    .map(([name, { value, source }]) => `  ${name.padEnd(18)} ${formatValue(value).padEnd(20)} ${source}`);
  const environments = ranks.map((env, rank) => {
    const pairs = Object.entries(env).map(([name, value]) => `  ${name}=${value}`);
    return [`rank ${rank}`, ...pairs].join("\n");
  });
  const words = command.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : JSON.stringify(word)));
  return ["options", ...rows, "command", `  ${words.join(" ")}`, `  in ${cwd}`, ...environments, ""].join("\n");
}

const formatValue = (value: Sourced["value"]): string => {
  if (value === undefined) return "–";
  if (Array.isArray(value)) return value.join(" ");
  return /^\S+$/.test(String(value)) ? String(value) : JSON.stringify(value);
};
