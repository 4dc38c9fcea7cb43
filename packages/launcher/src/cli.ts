#!/usr/bin/env node
import { readFileSync } from "node:fs";
import { dryRun, dryRunText } from "./dry-run.ts";
import { RendezvousError, UsageError } from "./errors.ts";
import type { LaunchEvent, LaunchOptions } from "./job.ts";
import { type Job, start } from "./launch.ts";
import { helpText } from "./options/specs.ts";
import { type CommandLine, parseCommandLine } from "./options/parse.ts";
import { parseRanks } from "./options/ranks.ts";
import { type ConsoleSettings, settingsOf } from "./options/settings.ts";
import { resolveSources } from "./options/sources.ts";
import { Values } from "./options/values.ts";
import { jsonConsole } from "./output/json-console.ts";
import { Sink } from "./output/sink.ts";
import { TextConsole } from "./output/text-console.ts";
import { planOf, workingDirectory } from "./plan.ts";

/** EX_SOFTWARE: the launcher itself failed. */
const BUG = 70;

const out = new Sink(process.stdout);
const err = new Sink(process.stderr);

async function main(argv: readonly string[]): Promise<number> {
  const line = parseCommandLine(argv);
  const sources = resolveSources(line.options, process.env, workingDirectory());
  const values = new Values(sources);
  if (values.flag("help")) return print(helpText());
  if (values.flag("version")) return print(`mosaic-run ${version()}, Node ${process.versions.node}\n`);
  const { launch, console: settings } = settingsOf(sources);
  const color = useColor(settings.color);
  const options: LaunchOptions = { ...launch, ...entryOf(line), color };
  const plan = planOf(options);
  if (values.flag("dry-run")) {
    const description = dryRun(plan, sources);
    return print(settings.json ? `${JSON.stringify(description)}\n` : dryRunText(description));
  }
  if (isExtraTask(process.env)) {
    err.write("mosaic-run: another task of this node starts the ranks; nothing to do here\n");
    return 0;
  }
  const onEvent = consoleFor(settings, plan.nproc, color);
  const job = start({ ...options, nprocPerNode: plan.nproc, onEvent });
  const restore = [passSignals(job), endWithNpm(job)];
  try {
    return (await job.done).exitCode;
  } finally {
    // From here on only output is waited for, and a signal may end that as it ends any program.
    for (const each of restore) each();
  }
}

function print(text: string): number {
  out.write(text);
  return 0;
}

function entryOf({ entry, args }: CommandLine): Pick<LaunchOptions, "entry" | "args"> {
  if (entry !== undefined) return { entry, args };
  throw new UsageError("expected an entry to run: mosaic-run [options] <entry> [arguments] (mosaic-run --help)");
}

function consoleFor(settings: ConsoleSettings, worldSize: number, color: boolean): (event: LaunchEvent) => void {
  const shown = parseRanks(settings.consoleRanks, worldSize);
  if (settings.json) return jsonConsole(out, shown);
  const columns = process.stdout.isTTY ? process.stdout.columns : undefined;
  const console = new TextConsole(out, err, { shown, prefix: settings.logPrefix, color, columns });
  return (event) => console.show(event);
}

/** https://no-color.org: any value but the empty one turns colours off. */
function useColor(setting: ConsoleSettings["color"]): boolean {
  if (setting !== "auto") return setting === "always";
  return process.stdout.isTTY && !process.env.NO_COLOR;
}

/** `srun` may start one launcher for every task of a node: the first starts the ranks, the others leave it to it. */
function isExtraTask(env: NodeJS.ProcessEnv): boolean {
  return env.SLURM_STEP_ID !== undefined && Number(env.SLURM_LOCALID ?? 0) > 0;
}

const PASSED = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"] as const;

/** Passes signals on to the job, until the function that it returns is called. */
function passSignals(job: Job): () => void {
  const pass = (name: NodeJS.Signals): void => job.signal(name);
  for (const name of PASSED) process.on(name, pass);
  return () => {
    for (const name of PASSED) process.off(name, pass);
  };
}

const PARENT_MS = 100;

/**
 * `npx mosaic-run` and scripts of package.json run in a shell between npm and this process, and npm passes SIGTERM on to the
 * shell alone: it dies, npm ends, and a job would go on that nobody watches. So where npm, or one of its kind, started this
 * process, the end of its parent counts as that signal.
 */
function endWithNpm(job: Job): () => void {
  if (process.env.npm_config_user_agent === undefined) return () => {};
  const parent = process.ppid;
  const look = setInterval(() => {
    if (process.ppid === parent) return;
    clearInterval(look);
    job.signal("SIGTERM");
  }, PARENT_MS);
  return () => clearInterval(look);
}

function version(): string {
  const manifest = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8")) as { version: string };
  return manifest.version;
}

function explain(error: unknown): number {
  if (error instanceof UsageError || error instanceof RendezvousError) {
    err.write(`mosaic-run: ${error.message}\n`);
    return error.exitCode;
  }
  const stack = error instanceof Error ? error.stack : String(error);
  err.write(`mosaic-run: this is a bug of the launcher, please report it:\n${stack}\n`);
  return BUG;
}

async function end(code: number): Promise<never> {
  await Promise.all([out.flush(), err.flush()]);
  process.exit(code);
}

// Whatever goes wrong in here, the guard ends the ranks when this process is gone.
process.on("uncaughtException", (error) => void end(explain(error)));
await end(await main(process.argv.slice(2)).catch(explain));
