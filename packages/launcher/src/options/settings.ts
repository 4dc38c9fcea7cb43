import { isIP } from "node:net";
import { hostname } from "node:os";
import { UsageError } from "../errors.ts";
import type { LaunchOptions } from "../job.ts";
import { MAX_THREADS } from "../launch-plan.ts";
import { PREFIX_FIELDS } from "../output/text-console.ts";
import type { Sourced } from "./sources.ts";
import { OptionValues } from "./values.ts";

const MAX_PORT = 65_535;

/** How the console shows a job. */
export interface ConsoleSettings {
  readonly json: boolean;
  readonly color: "auto" | "always" | "never";
  readonly logPrefix: string;
  /** As `--console-ranks` wrote it: what it means depends on the world size. */
  readonly consoleRanks: string | undefined;
}

/** A command line and everything behind it, typed. */
export interface Settings {
  readonly launch: Omit<LaunchOptions, "entry" | "args">;
  readonly console: ConsoleSettings;
}

/** Types and checks what `resolveSources` found. Throws UsageError for a value that does not fit. */
export function parseSettings(sources: ReadonlyMap<string, Sourced>): Settings {
  const values = new OptionValues(sources);
  const endpointPort = checkSingleNode(values);
  const masterPort = storePort(values, endpointPort);
  const launch: Omit<LaunchOptions, "entry" | "args"> = {
    exec: values.flag("exec"),
    env: parseEnvironment(values),
    nodeArgs: values.list("node-arg"),
    imports: values.list("import"),
    nprocPerNode: processesPerNode(values),
    role: values.text("role") ?? "default",
    ...optionalProperty("threads", explicitThreads(sources, values)),
    ...optionalProperty("rdzvId", values.text("rdzv-id")),
    ...optionalProperty("masterPort", masterPort),
    ...optionalProperty("graceMs", values.duration("grace")),
    ...optionalProperty("failureGraceMs", values.duration("failure-grace")),
    ...optionalProperty("timeoutMs", values.text("timeout") === "off" ? undefined : values.duration("timeout")),
    ...optionalProperty("maxRestarts", values.count("max-restarts", 0)),
    ...optionalProperty("restartBackoffMs", values.duration("restart-backoff")),
    ...optionalProperty("minUptimeMs", values.duration("min-uptime")),
    ...optionalProperty("logDir", values.text("log-dir")),
  };
  const console: ConsoleSettings = {
    json: values.flag("json"),
    color: values.choice("color", ["auto", "always", "never"]),
    logPrefix: parsePrefix(values),
    consoleRanks: values.text("console-ranks"),
  };
  return { launch, console };
}

/** Refuses a field in braces that is not one: it would stand before every line as it was written. */
function parsePrefix(values: OptionValues): string {
  const prefix = values.text("log-prefix") ?? "";
  const known = PREFIX_FIELDS.map((field) => `{${field}}`);
  const unknown = prefix.match(/\{[^{}]*\}/g)?.find((field) => !known.includes(field));
  if (unknown === undefined) return prefix;
  throw values.invalidValue("log-prefix", `${known.join(", ")} and text without braces`);
}

function processesPerNode(values: OptionValues): number | "auto" | "cpu" | "gpu" {
  const value = values.text("nproc-per-node");
  if (value === "auto" || value === "cpu" || value === "gpu") return value;
  if (value === undefined || !/^[1-9]\d*$/.test(value))
    throw values.invalidValue("nproc-per-node", "a positive integer, auto, cpu or gpu");
  return Number(value);
}

/** What was inherited is left to the plan: `--env MOSAIC_THREADS=…` comes before it. */
function explicitThreads(sources: ReadonlyMap<string, Sourced>, values: OptionValues): number | undefined {
  return sources.get("threads")?.source === "MOSAIC_THREADS" ? undefined : values.count("threads", 1, MAX_THREADS);
}

function parseEnvironment(values: OptionValues): Readonly<Record<string, string>> {
  const pairs = values.list("env").map((pair) => {
    const match = /^([A-Za-z_][A-Za-z0-9_]*)=(.*)$/s.exec(pair);
    if (match === null) throw new UsageError(`--env: expected NAME=VALUE, received ${JSON.stringify(pair)}`);
    return [match[1] as string, match[2] as string];
  });
  return Object.fromEntries(pairs);
}

/** Accepts what means "this node alone" in torchrun's words, refuses the rest; the endpoint's port, if it names one. */
function checkSingleNode(values: OptionValues): number | undefined {
  const nodes = values.text("nnodes") ?? "1";
  if (!/^\d+(:\d+)?$/.test(nodes)) throw values.invalidValue("nnodes", "1");
  if (nodes !== "1" && nodes !== "1:1") throw values.multiNodeError("nnodes", "pass --nnodes 1 to use this node alone");
  if ((values.count("node-rank", 0) ?? 0) > 0) throw values.multiNodeError("node-rank", "leave it out");
  // Without --standalone torchrun meets other nodes at an endpoint: with one node that is the same job.
  values.flag("standalone");
  const backend = values.text("rdzv-backend");
  if (backend !== undefined && backend !== "static" && backend !== "c10d")
    throw values.multiNodeError("rdzv-backend", "leave it out: the launcher has a store of its own");
  const address = values.text("master-addr");
  if (address !== undefined && !isThisNode(address)) throw values.multiNodeError("master-addr", "leave it out");
  const endpoint = values.text("rdzv-endpoint");
  if (endpoint === undefined || endpoint === "") return undefined;
  const match = /^(\[[^\]]*\]|[^:]*)(?::(\d+))?$/.exec(endpoint);
  if (match === null) throw values.invalidValue("rdzv-endpoint", "host or host:port");
  if (!isThisNode(match[1] as string)) throw values.multiNodeError("rdzv-endpoint", "leave it out");
  const port = match[2] === undefined ? undefined : Number(match[2]);
  if (port !== undefined && port > MAX_PORT) throw values.invalidValue("rdzv-endpoint", `a port up to ${MAX_PORT}`);
  return port;
}

/** The store's port, which both options name; 0 leaves it open. */
function storePort(values: OptionValues, endpointPort: number | undefined): number | undefined {
  const masterPort = values.count("master-port", 0, MAX_PORT);
  if (!masterPort || !endpointPort || masterPort === endpointPort) return masterPort || endpointPort;
  throw values.invalidValue("rdzv-endpoint", `the port ${masterPort} that --master-port names, or none`);
}

function isThisNode(host: string): boolean {
  if (host === "localhost" || host === "[::1]" || host === "::1") return true;
  if (isIP(host) > 0) return isIP(host) === 4 && host.startsWith("127.");
  const own = hostname();
  return host === own || host.startsWith(`${own}.`);
}

/** A property only when there is a value: with exact optional types, absent and undefined differ. */
function optionalProperty<K extends string, V>(key: K, value: V | undefined): { [P in K]?: V } {
  return value === undefined ? {} : ({ [key]: value } as { [P in K]?: V });
}

/** The most ranks that are all shown when no option selects which to show. */
const MAX_RANKS_SHOWN = 8;

/** The ranks that `--console-ranks` names (`all`, `none`, `0,2-3`) among `worldSize`. Throws UsageError. */
export function parseRanks(text: string | undefined, worldSize: number): ReadonlySet<number> {
  if (text === "all" || (text === undefined && worldSize <= MAX_RANKS_SHOWN))
    return new Set(Array.from({ length: worldSize }, (_, rank) => rank));
  if (text === undefined) return new Set([0]);
  if (text === "none") return new Set();
  const ranks = new Set<number>();
  for (const part of text.split(",")) {
    const match = /^(\d+)(?:-(\d+))?$/.exec(part);
    const [first, last] = [Number(match?.[1]), Number(match?.[2] ?? match?.[1])];
    if (match === null || first > last || last >= worldSize)
      throw new UsageError(
        `--console-ranks: expected all, none or ranks of 0-${worldSize - 1} such as 0,2-3, received "${text}"`,
      );
    for (let rank = first; rank <= last; rank++) ranks.add(rank);
  }
  return ranks;
}
