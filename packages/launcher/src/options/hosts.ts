import { readFileSync } from "node:fs";
import { isIP } from "node:net";
import { formatAddress } from "../agent/network.ts";
import { UsageError } from "../errors.ts";
import { DEFAULT_RDZV_PORT, MAX_NODES, parseEndpoint, parseNodeRange } from "./endpoint.ts";
import { isThisNode } from "./nodes.ts";
import { findOption, OPTIONS } from "./specs.ts";
import type { SourcedValue } from "./sources.ts";
import type { OptionValues } from "./values.ts";

/** A host of `--hosts` or `--hostfile`. */
export interface Host {
  /** As ssh is given it: `host` or `user@host`. */
  readonly target: string;
  /** Its name or address alone, as output is prefixed. */
  readonly name: string;
  /** Ranks on it; undefined: as `--nproc-per-node` has it. */
  readonly slots: number | undefined;
}

/** A job whose agents the launcher starts itself. */
export interface HostsSettings {
  /** Their order is that of the node ranks. */
  readonly hosts: readonly Host[];
  /** Fewer may do, with `--nnodes MIN:MAX`. */
  readonly minHosts: number;
  /** The program that reaches a host, and its own options. */
  readonly ssh: readonly string[];
  /** Each host's options. */
  readonly sources: readonly ReadonlyMap<string, SourcedValue>[];
}

/** `[user@]host[:slots]`; an address of IPv6 in brackets. A leading "-" would be an option of ssh. */
const HOST_PATTERN =
  /^(?:([A-Za-z0-9_][\w.-]*)@)?(\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[A-Za-z0-9_][\w.-]*)(?::([1-9]\d{0,4}))?$/;

/** Reads `--hosts` or `--hostfile`; undefined where neither is given. Throws UsageError. */
export function parseHosts(
  values: OptionValues,
  sources: ReadonlyMap<string, SourcedValue>,
): HostsSettings | undefined {
  const hostList = values.text("hosts");
  const hostfile = values.text("hostfile");
  if (hostList === undefined && hostfile === undefined) return undefined;
  if (hostList !== undefined && hostfile !== undefined)
    throw new UsageError(
      `--hosts and --hostfile (from ${values.source("hostfile")}) cannot be combined; pass one of them`,
    );
  const hosts = hostList === undefined ? readHostfile(hostfile as string) : parseHostList(hostList, values);
  const names = hosts.map(({ name }) => name);
  const duplicateName = names.find((name, i) => names.indexOf(name) !== i);
  const option = hostList === undefined ? "hostfile" : "hosts";
  if (duplicateName !== undefined)
    throw values.invalidValueError(option, `unique hosts, with ${duplicateName}:N for N ranks (slots=N in a hostfile)`);
  if (hosts.length > MAX_NODES) throw values.invalidValueError(option, `at most ${MAX_NODES} hosts`);
  const ssh = splitWords(values.text("ssh") ?? "");
  if (ssh.length === 0) throw values.invalidValueError("ssh", "a command with its options");
  if (["--node-rank", "MOSAIC_NODE_RANK"].includes(values.source("node-rank")))
    throw values.invalidValueError("node-rank", `no value, because --${option} numbers the nodes`);
  const range = nodeRange(values, hosts.length);
  const endpoint = hosts.length === 1 ? undefined : formatEndpoint(values, names);
  return {
    ...{ hosts, ssh, minHosts: range === undefined ? hosts.length : range.min },
    sources: hosts.map((host, rank) =>
      hostSources(sources, host, {
        nnodes: range === undefined ? String(hosts.length) : `${range.min}:${range.max}`,
        ...(endpoint === undefined ? {} : { "node-rank": String(rank), "rdzv-endpoint": endpoint }),
      }),
    ),
  };
}

function parseHostList(list: string, values: OptionValues): readonly Host[] {
  return list.split(",").map((text) => {
    const host = parseHost(text.trim());
    if (host === undefined) throw values.invalidValueError("hosts", "a comma-separated list of [user@]host[:slots]");
    return host;
  });
}

function parseHost(text: string): Host | undefined {
  const [matchedText, user, hostText = "", slots] = HOST_PATTERN.exec(text) ?? [];
  const name = hostText.replace(/^\[(.*)\]$/, "$1");
  if (matchedText === undefined || (hostText !== name && isIP(name) !== 6)) return undefined;
  const target = user === undefined ? name : `${user}@${name}`;
  return { target, name, slots: slots === undefined ? undefined : Number(slots) };
}

/** `host [slots=N]` a line, as Open MPI and DeepSpeed have it; `#` begins a comment. */
function readHostfile(path: string): readonly Host[] {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (error) {
    throw new UsageError(`--hostfile ${path}: cannot be read: ${(error as Error).message}`);
  }
  const hosts = text.split("\n").flatMap((line, i) => {
    const [word, ...slotWords] = line.replace(/#.*$/, "").trim().split(/\s+/);
    if (!word) return [];
    const host = parseHost(word);
    const slots = slotWords.length === 0 ? [] : /^slots=([1-9]\d{0,4})$/.exec(slotWords.join(" ").replaceAll(" ", ""));
    if (host === undefined || slots === null || (slots[1] !== undefined && host.slots !== undefined))
      throw new UsageError(`--hostfile ${path}:${i + 1}: expected host [slots=N], received ${JSON.stringify(line)}`);
    return [slots[1] === undefined ? host : { ...host, slots: Number(slots[1]) }];
  });
  if (hosts.length === 0) throw new UsageError(`--hostfile ${path}: expected at least one host, received none`);
  return hosts;
}

/** Words apart by spaces; quotes keep those in them. */
function splitWords(text: string): readonly string[] {
  const words = text.match(/(?:[^\s'"]|'[^']*'|"[^"]*")+/g) ?? [];
  return words.map((word) => word.replaceAll(/'([^']*)'|"([^"]*)"/g, "$1$2"));
}

/** SLURM's numbers are those of an allocation; the hosts count. */
const isSchedulerSource = (source: string): boolean => source.startsWith("SLURM_");

/** The hosts give the number of nodes; `MIN:MAX` adds how few of them suffice. */
function nodeRange(values: OptionValues, count: number): ReturnType<typeof parseNodeRange> {
  const source = values.source("nnodes");
  if (source === "default" || isSchedulerSource(source)) return undefined;
  const range = parseNodeRange(values.text("nnodes") ?? "");
  if (range?.max !== count)
    throw values.invalidValueError("nnodes", `${count} or MIN:${count} for ${count} hosts, or no value`);
  return range;
}

function formatEndpoint(values: OptionValues, names: readonly string[]): string {
  const [firstHost = ""] = names;
  const endpointText = isSchedulerSource(values.source("rdzv-endpoint")) ? undefined : values.text("rdzv-endpoint");
  if (endpointText !== undefined) {
    const endpoint = parseEndpoint(endpointText);
    if (endpoint === undefined || endpoint.host === "")
      throw values.invalidValueError("rdzv-endpoint", "host or host:port");
    return endpointText;
  }
  const address = values.text("master-addr") ?? firstHost;
  if (isLoopback(address) && !names.every(isLoopback))
    throw new UsageError(
      `node 0 is ${address}, which other hosts cannot reach; pass a host name or address that they can reach, or pass ` +
        "--rdzv-endpoint",
    );
  const port = values.count("master-port", 0, 65_535) || DEFAULT_RDZV_PORT;
  return formatAddress(address, port);
}

const isLoopback = (name: string): boolean => name === "localhost" || name === "::1" || name.startsWith("127.");

/** Options that are the launcher's alone: what it makes of them stands in a host's other options. */
const LOCAL_OPTIONS = ["hosts", "hostfile", "ssh", "agent-stdin", "master-addr", "master-port"];

function hostSources(
  sources: ReadonlyMap<string, SourcedValue>,
  { slots }: Host,
  overrides: Readonly<Record<string, string>>,
): ReadonlyMap<string, SourcedValue> {
  const source = sources.get("hostfile")?.value === undefined ? "--hosts" : "--hostfile";
  const hostOptions = new Map(
    [...sources].filter(
      ([name, sourcedValue]) => !LOCAL_OPTIONS.includes(name) && !isSchedulerSource(sourcedValue.source),
    ),
  );
  for (const name of ["nproc-per-node", "master-port"])
    if (!hostOptions.has(name)) hostOptions.set(name, { value: findOption(name)?.default, source: "default" });
  // The host of a job on one host is node 0, and the endpoint its own.
  if (overrides["node-rank"] === undefined) for (const name of ["node-rank", "rdzv-endpoint"]) hostOptions.delete(name);
  for (const [name, value] of Object.entries(overrides)) hostOptions.set(name, { value, source });
  if (slots !== undefined) hostOptions.set("nproc-per-node", { value: String(slots), source });
  return hostOptions;
}

/** How the launcher shows a job; its agents write JSON instead. */
const CONSOLE_OPTIONS = ["json", "color", "log-prefix", "dry-run", "help", "version"];

/** A host's options as a command line. What `--env` names is not among them: other users can read command lines. */
export function formatAgentOptions(sources: ReadonlyMap<string, SourcedValue>): readonly string[] {
  return OPTIONS.flatMap(({ name, kind }) => {
    const { value, source } = sources.get(name) ?? { value: undefined, source: "default" };
    if (value === undefined || source === "default" || name === "env" || CONSOLE_OPTIONS.includes(name)) return [];
    if (kind === "list") return (value as readonly string[]).map((item) => `--${name}=${item}`);
    return [value === true ? `--${name}` : `--${name}=${String(value)}`];
  });
}

/** Whether a host is this machine, where no ssh is needed. */
export const isLocal = ({ target, name }: Host): boolean => target === name && isThisNode(name);
