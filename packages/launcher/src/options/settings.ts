import { COLOR_SETTINGS, type ColorSetting } from "../output/color.ts";
import { UsageError } from "../errors.ts";
import type { LaunchOptions } from "../job.ts";
import { MAX_RANKS, MAX_THREADS, nprocValues } from "../launch-plan.ts";
import { PREFIX_FIELDS } from "../output/text-console.ts";
import { parseNodes } from "./nodes.ts";
import type { SourcedValue } from "./sources.ts";
import { OptionValues } from "./values.ts";

/** Settings of the console output. */
export interface ConsoleSettings {
  readonly json: boolean;
  readonly color: ColorSetting;
  readonly logPrefix: string;
  /** The text of `--console-ranks`. It is parsed when the world size is known. */
  readonly consoleRanks: string | undefined;
}

/** Typed settings from the command line and all other sources. */
export interface Settings {
  readonly launch: Omit<LaunchOptions, "entry" | "args">;
  readonly console: ConsoleSettings;
}

/** Parses the values of `resolveSources`. `argv` is used in messages. Throws UsageError for an invalid value. */
export function parseSettings(sources: ReadonlyMap<string, SourcedValue>, argv: readonly string[] = []): Settings {
  const values = new OptionValues(sources);
  const launch: Omit<LaunchOptions, "entry" | "args"> = {
    exec: values.flag("exec"),
    env: parseEnvironment(values),
    nodeArgs: values.list("node-arg"),
    imports: values.list("import"),
    nprocPerNode: processesPerNode(values),
    role: values.text("role") ?? "default",
    ...optionalProperty("threads", explicitThreads(sources, values)),
    ...optionalProperty("rdzvId", values.text("rdzv-id")),
    ...parseNodes(values, argv),
    ...optionalProperty("graceMs", values.durationMs("grace")),
    ...optionalProperty("failureGraceMs", values.durationMs("failure-grace")),
    ...optionalProperty("timeoutMs", values.text("timeout") === "off" ? undefined : values.durationMs("timeout")),
    ...optionalProperty("maxRestarts", values.count("max-restarts", 0)),
    ...optionalProperty("restartBackoffMs", values.durationMs("restart-backoff")),
    ...optionalProperty("restartResetMs", values.durationMs("restart-reset")),
    ...optionalProperty("minUptimeMs", values.durationMs("min-uptime")),
    ...optionalProperty("logDir", values.text("log-dir")),
    ...optionalProperty("traceDir", values.text("trace")),
  };
  const console: ConsoleSettings = {
    json: values.flag("json"),
    color: values.choice("color", COLOR_SETTINGS),
    logPrefix: parsePrefix(values),
    consoleRanks: values.text("console-ranks"),
  };
  return { launch, console };
}

/**
 * Parses `--log-prefix`. An unknown field in braces is an error, because it would be printed literally in every line.
 */
function parsePrefix(values: OptionValues): string {
  const prefix = values.text("log-prefix") ?? "";
  const knownFields = PREFIX_FIELDS.map((field) => `{${field}}`);
  const unknownField = prefix.match(/\{[^{}]*\}/g)?.find((field) => !knownFields.includes(field));
  if (unknownField === undefined) return prefix;
  throw values.invalidValueError("log-prefix", `text with the fields ${knownFields.join(", ")} and no other braces`);
}

function processesPerNode(values: OptionValues): number | "auto" | "cpu" | "gpu" {
  const value = values.text("nproc-per-node");
  if (value === "auto" || value === "cpu" || value === "gpu") return value;
  if (value === undefined || !/^[1-9]\d*$/.test(value) || Number(value) > MAX_RANKS)
    throw values.invalidValueError("nproc-per-node", nprocValues);
  return Number(value);
}

/**
 * Returns the value of `--threads`. An inherited MOSAIC_THREADS is left to the plan, because `--env MOSAIC_THREADS=…`
 * overrides it.
 */
function explicitThreads(sources: ReadonlyMap<string, SourcedValue>, values: OptionValues): number | undefined {
  return sources.get("threads")?.source === "MOSAIC_THREADS" ? undefined : values.count("threads", 1, MAX_THREADS);
}

function parseEnvironment(values: OptionValues): Readonly<Record<string, string>> {
  const pairs = values.list("env").map((pair) => {
    const match = /^([A-Za-z_][A-Za-z0-9_]*)(?:=(.*))?$/s.exec(pair);
    if (match === null) throw new UsageError(`--env: expected NAME=VALUE or NAME, received ${JSON.stringify(pair)}`);
    const name = match[1] as string;
    const value = match[2] ?? process.env[name];
    if (value === undefined)
      throw new UsageError(`--env ${name}: not set in the launcher's environment; set it, or pass --env ${name}=VALUE`);
    return [name, value];
  });
  return Object.fromEntries(pairs);
}

/**
 * Returns an object with the property if the value is defined. With exact optional types, absent and undefined differ.
 */
function optionalProperty<K extends string, V>(key: K, value: V | undefined): { [P in K]?: V } {
  return value === undefined ? {} : ({ [key]: value } as { [P in K]?: V });
}

/** The largest world of which all ranks are shown by default. */
const MAX_SHOWN_RANKS = 8;

/** Returns the ranks selected by `--console-ranks` (`all`, `none`, `0,2-3`) of `worldSize` ranks. Throws UsageError. */
export function parseRanks(text: string | undefined, worldSize: number): ReadonlySet<number> {
  if (text === "all" || (text === undefined && worldSize <= MAX_SHOWN_RANKS))
    return new Set(Array.from({ length: worldSize }, (_, rank) => rank));
  if (text === undefined) return new Set([0]);
  if (text === "none") return new Set();
  const ranks = new Set<number>();
  for (const rangeText of text.split(",")) {
    const match = /^(\d+)(?:-(\d+))?$/.exec(rangeText);
    const [firstRank, lastRank] = [Number(match?.[1]), Number(match?.[2] ?? match?.[1])];
    if (match === null || firstRank > lastRank || lastRank >= worldSize)
      throw new UsageError(
        `--console-ranks: expected all, none or ranks from 0 to ${worldSize - 1} such as 0,2-3, received "${text}"`,
      );
    for (let rank = firstRank; rank <= lastRank; rank++) ranks.add(rank);
  }
  return ranks;
}
