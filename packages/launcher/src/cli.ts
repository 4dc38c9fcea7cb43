#!/usr/bin/env node
import { rankVariables, createRankEnvironment } from "./environment.ts";
import { RendezvousError, UsageError } from "./errors.ts";
import { AgentStdin } from "./hosts/agent-stdin.ts";
import type { LaunchEvent, LaunchOptions } from "./job.ts";
import { type LaunchPlan, MAX_RANKS, resolvePlan, workingDirectory } from "./launch-plan.ts";
import { type Job, placeholderAssignment, start } from "./launch.ts";
import { launcherVersion } from "./version.ts";
import { formatAgentOptions, type HostsSettings, parseHosts } from "./options/hosts.ts";
import { type CommandLine, parseCommandLine } from "./options/parse.ts";
import { type ConsoleSettings, parseRanks, parseSettings, type Settings } from "./options/settings.ts";
import { isSlurmStep, resolveSources, type SourcedValue } from "./options/sources.ts";
import { helpText } from "./options/specs.ts";
import { OptionValues } from "./options/values.ts";
import { isColorEnabled } from "./output/color.ts";
import { createJsonConsole } from "./output/json-console.ts";
import { OutputSink } from "./output/sink.ts";
import { TextConsole } from "./output/text-console.ts";
import { jobSecret, TOKEN_VARIABLE, TOKEN_FILE_VARIABLE } from "./secret.ts";

/** EX_SOFTWARE: the launcher itself failed. */
const EX_SOFTWARE = 70;

const stderr = new OutputSink(process.stderr);
const stdout = new OutputSink(process.stdout, {
  onError: ({ message }) =>
    stderr.write(`mosaic-run: cannot write to standard output: ${message}; free space, or redirect it\n`),
});

async function main(argv: readonly string[]): Promise<number> {
  const line = parseCommandLine(argv);
  const sources = resolveSources(line.options, process.env, workingDirectory());
  const values = new OptionValues(sources);
  if (values.flag("help")) return print(helpText());
  if (values.flag("version")) return print(`mosaic-run ${launcherVersion()}, Node ${process.versions.node}\n`);
  const agentStdin = values.flag("agent-stdin") ? new AgentStdin() : undefined;
  const hosts = agentStdin === undefined ? parseHosts(values, sources) : undefined;
  if (hosts !== undefined) return runHosts(hosts, line, values);
  const { launch, console: settings } =
    agentStdin === undefined ? parseSettings(sources, argv) : await readAgentSettings(agentStdin, sources);
  const color = isColorEnabled(settings.color);
  const options: LaunchOptions = { ...launch, ...entryOptions(line), color };
  const plan = resolvePlan(options);
  if (values.flag("dry-run")) {
    const dryRunResult = dryRun(plan, sources);
    return print(settings.json ? `${JSON.stringify(dryRunResult)}\n` : formatDryRun(dryRunResult));
  }
  if (isRedundantTask(process.env)) {
    stderr.write("mosaic-run: another task on this node starts the ranks; this task exits\n");
    return 0;
  }
  if (isSlurmStep(process.env) && process.env.npm_config_user_agent !== undefined)
    stderr.write(
      "mosaic-run: npx, started by srun, may not forward SLURM's signals to the ranks; start node_modules/.bin/mosaic-run directly\n",
    );
  const onEvent =
    plan.nodes === undefined ? createConsole(settings, plan.nproc, color) : createNodeConsole(settings, color);
  const job = start({ ...options, nprocPerNode: plan.nproc, onEvent });
  agentStdin?.onSignal((name) => job.signal(name));
  const cleanups = [forwardSignals(job), stopWithNpm(job)];
  try {
    return (await job.done).exitCode;
  } finally {
    // From here on the launcher only waits for its output, and a signal terminates it as it does any program.
    for (const cleanup of cleanups) cleanup();
  }
}

/**
 * Reads the secret and the ranks' variables, which the launcher that started this agent sends. The agent writes events
 * as JSON.
 */
async function readAgentSettings(stdin: AgentStdin, sources: ReadonlyMap<string, SourcedValue>): Promise<Settings> {
  const { launch, console: settings } = parseSettings(sources);
  const { env, secret } = await stdin.header();
  if (secret !== undefined) {
    // A variable that is set at run time does not appear in /proc/<pid>/environ.
    process.env[TOKEN_VARIABLE] = secret;
    delete process.env[TOKEN_FILE_VARIABLE];
  }
  stdout.write(`${JSON.stringify({ event: "agent", version: launcherVersion(), pid: process.pid })}\n`);
  return { launch: { ...launch, env }, console: { ...settings, json: true } };
}

/** Starts the agents of all hosts, over ssh. */
async function runHosts(hosts: HostsSettings, line: CommandLine, values: OptionValues): Promise<number> {
  const { launch, console: options } = parseSettings(hosts.sources[0] as ReadonlyMap<string, SourcedValue>);
  const { entry, args = [] } = entryOptions(line);
  const consolePrefix = values.source("log-prefix") === "default" ? "[{host}:{rank}] " : options.logPrefix;
  const settings = { ...options, logPrefix: consolePrefix };
  const color = isColorEnabled(settings.color);
  const commands = hosts.sources.map((sources) => [
    ...formatAgentOptions(sources),
    `--color=${color ? "always" : "never"}`,
    ...["--", entry, ...args],
  ]);
  const { HostsJob, dryRunHosts } = await import("./hosts/hosts-job.ts");
  const plan = {
    ...{ hosts: hosts.hosts, minHosts: hosts.minHosts, ssh: hosts.ssh, cwd: workingDirectory(), args: commands },
    ...{ env: launch.env ?? {}, maxRestarts: launch.maxRestarts ?? 0, graceMs: launch.graceMs ?? 0 },
  };
  if (values.flag("dry-run")) {
    const hostCommands = dryRunHosts(plan);
    return print(
      settings.json
        ? `${JSON.stringify(hostCommands)}\n`
        : hostCommands.map(({ host, command }) => `${host}\n  ${formatCommand(command)}\n`).join(""),
    );
  }
  const hasSecret = [TOKEN_VARIABLE, TOKEN_FILE_VARIABLE].some((name) => process.env[name]);
  const secret = hasSecret && hosts.hosts.length > 1 ? jobSecret() : undefined;
  const job = new HostsJob(
    { ...plan, secret },
    {
      // Agents already omit the lines of hidden ranks. A line may arrive before the event with the number of ranks.
      printEvent: createNodeConsole(settings, color, "all"),
      printLine: (host, text) => stderr.write(`[${host}] ${text}\n`),
      printMessage: (text) => stderr.write(`mosaic-run: ${text}\n`),
    },
  );
  const cleanups = [forwardSignals(job), stopWithNpm(job)];
  try {
    return await job.run();
  } finally {
    for (const cleanup of cleanups) cleanup();
  }
}

/** Prints a result. Returns the exit code. */
async function print(text: string): Promise<number> {
  stdout.write(text);
  await stdout.flush();
  return stdout.error === undefined ? 0 : 1;
}

function entryOptions({ entry, args }: CommandLine): Pick<LaunchOptions, "entry" | "args"> {
  if (entry !== undefined) return { entry, args };
  throw new UsageError(
    "expected an entry to run, received none; usage: mosaic-run [options] <entry> [arguments] (see mosaic-run --help)",
  );
}

function createConsole(settings: ConsoleSettings, worldSize: number, color: boolean): (event: LaunchEvent) => void {
  const shownRanks = parseRanks(settings.consoleRanks, worldSize);
  if (settings.json) return createJsonConsole(stdout, shownRanks);
  const columns = process.stdout.isTTY ? process.stdout.columns : undefined;
  const console = new TextConsole(stdout, stderr, { shownRanks, prefix: settings.logPrefix, color, columns });
  return (event) => console.writeEvent(event);
}

/**
 * Creates the console of a job on several nodes. Ranks are numbered when all nodes have joined, so
 * `--console-ranks` is resolved at the start event. `earlyConsoleRanks` selects the ranks that are shown before it.
 */
function createNodeConsole(
  settings: ConsoleSettings,
  color: boolean,
  earlyConsoleRanks: "all" | "none" = "none",
): (event: LaunchEvent) => void {
  parseRanks(settings.consoleRanks, MAX_RANKS);
  let printEvent = createConsole({ ...settings, consoleRanks: earlyConsoleRanks }, MAX_RANKS, color);
  return (event) => {
    if (event.type === "start") {
      const rankLimit = settings.consoleRanks === undefined ? event.worldSize : MAX_RANKS;
      printEvent = createConsole(settings, rankLimit, color);
    }
    printEvent(event);
  };
}

/**
 * `srun` may start one launcher for each task of a node. The first one starts all ranks of the node, the others exit.
 */
function isRedundantTask(env: NodeJS.ProcessEnv): boolean {
  return isSlurmStep(env) && Number(env.SLURM_LOCALID ?? 0) > 0;
}

const FORWARDED_SIGNALS = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"] as const;

/** Forwards signals to the job until the returned function is called. */
function forwardSignals(job: Pick<Job, "signal">): () => void {
  const forwardSignal = (name: NodeJS.Signals): void => job.signal(name);
  for (const name of FORWARDED_SIGNALS) process.on(name, forwardSignal);
  return () => {
    for (const name of FORWARDED_SIGNALS) process.off(name, forwardSignal);
  };
}

const PARENT_POLL_INTERVAL_MS = 100;

/**
 * Stops the job when its parent process exits, if npm or a similar tool started this process. `npx mosaic-run` and
 * scripts of package.json run in a shell between npm and this process. npm sends SIGTERM only to that shell: the shell
 * and npm exit, and the job would continue without a terminal. The exit of the parent is therefore treated as SIGTERM.
 */
function stopWithNpm(job: Pick<Job, "signal">): () => void {
  if (process.env.npm_config_user_agent === undefined) return () => {};
  const parentPid = process.ppid;
  const pollTimer = setInterval(() => {
    if (process.ppid === parentPid) return;
    clearInterval(pollTimer);
    job.signal("SIGTERM");
  }, PARENT_POLL_INTERVAL_MS);
  return () => clearInterval(pollTimer);
}

function reportError(error: unknown): number {
  if (error instanceof UsageError || error instanceof RendezvousError) {
    stderr.write(`mosaic-run: ${error.message}\n`);
    return error.exitCode;
  }
  const stack = error instanceof Error ? error.stack : String(error);
  stderr.write(`mosaic-run: internal error, please report it:\n${stack}\n`);
  return EX_SOFTWARE;
}

async function flushAndExit(code: number): Promise<never> {
  await Promise.all([stdout.flush(), stderr.flush()]);
  process.exit(code);
}

/** Description of a job: all options with their sources, the command, and the environment of each rank. */
interface DryRun {
  readonly options: Readonly<Record<string, SourcedValue>>;
  readonly command: readonly string[];
  readonly cwd: string;
  readonly ranks: readonly Readonly<Record<string, string>>[];
}

/**
 * Describes a job without starting it. No port is bound, so a port that the system will choose is shown as
 * `<port>`.
 */
function dryRun(plan: LaunchPlan, sources: ReadonlyMap<string, SourcedValue>): DryRun {
  const port = plan.masterPort === 0 ? "<port>" : String(plan.masterPort);
  const ranks = Array.from({ length: plan.nproc }, (_, localRank) => {
    const environment = rankVariables(
      plan,
      placeholderAssignment(plan),
      localRank,
      `<logs>/attempt_0/${localRank}/error.json`,
    );
    createRankEnvironment(plan, environment);
    return {
      ...plan.env,
      ...environment,
      ...(plan.nodes === undefined ? { MASTER_PORT: port, MOSAIC_STORE: `127.0.0.1:${port}` } : {}),
      MOSAIC_RUN_ID: runId(plan),
      MOSAIC_LAUNCHER_ID: runId(plan),
    };
  });
  const { program, args } = plan.command;
  return { options: Object.fromEntries(sources), command: [program, ...args], cwd: plan.cwd, ranks };
}

function runId({ rdzvId }: LaunchPlan): string {
  return rdzvId === "none" ? "<run id>" : `${rdzvId}-<run id>`;
}

/** Formats the description of a job as text. */
function formatDryRun({ options, command, cwd, ranks }: DryRun): string {
  const rows = Object.entries(options)
    .filter(([name]) => !["help", "version", "dry-run", "agent-stdin"].includes(name))
    .map(([name, { value, source }]) => `  ${name.padEnd(18)} ${formatValue(value).padEnd(20)} ${source}`);
  const environmentTexts = ranks.map((env, rank) => {
    const pairs = Object.entries(env).map(([name, value]) => `  ${name}=${value}`);
    return [`rank ${rank}`, ...pairs].join("\n");
  });
  return ["options", ...rows, "command", `  ${formatCommand(command)}`, `  in ${cwd}`, ...environmentTexts, ""].join(
    "\n",
  );
}

const formatCommand = (command: readonly string[]): string =>
  command.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : JSON.stringify(word))).join(" ");

function formatValue(value: SourcedValue["value"]): string {
  if (value === undefined) return "–";
  if (Array.isArray(value)) return value.join(" ");
  return /^\S+$/.test(String(value)) ? String(value) : JSON.stringify(value);
}

// After any failure of the launcher, the orphan guard kills the ranks when this process has exited.
process.on("uncaughtException", (error) => void flushAndExit(reportError(error)));
await flushAndExit(await main(process.argv.slice(2)).catch(reportError));
