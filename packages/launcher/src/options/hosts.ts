import { readFileSync } from "node:fs";
import { isIP } from "node:net";
import { formatAddress } from "../agent/network.ts";
import { UsageError } from "../errors.ts";
import { isLoopback } from "../nodes/address.ts";
import { DEFAULT_RDZV_PORT, MAX_NODES, parseEndpoint, parseNodeRange } from "./endpoint.ts";
import { isThisNode } from "./nodes.ts";
import { findOption, OPTIONS } from "./specs.ts";
import type { SourcedValue } from "./sources.ts";
import type { OptionValues } from "./values.ts";

/** A host of `--hosts` or `--hostfile`. */
export interface Host {
  /** The argument of ssh: `host` or `user@host`. */
  readonly target: string;
  /** Host name or address without the user, as in the prefix of output lines. */
  readonly name: string;
  /** Number of ranks on this host; undefined for the value of `--nproc-per-node`. */
  readonly slots: number | undefined;
}

/** Settings of a job whose agents are started by this launcher. */
export interface HostsSettings {
  /** The hosts in the order of their node ranks. */
  readonly hosts: readonly Host[];
  /** Minimum number of hosts. It is less than all hosts only with `--nnodes MIN:MAX`. */
  readonly minHosts: number;
  /** The program that connects to a host, with its options. */
  readonly ssh: readonly string[];
  /** The options of each host's agent. */
  readonly sources: readonly ReadonlyMap<string, SourcedValue>[];
}

/**
 * `[user@]host[:slots]`, with an IPv6 address in brackets. A leading "-" is rejected because ssh would parse it as an
 * option.
 */
const HOST_PATTERN =
  /^(?:([A-Za-z0-9_][\w.-]*)@)?(\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[A-Za-z0-9_][\w.-]*)(?::([1-9]\d{0,4}))?$/;

/** Parses `--hosts` or `--hostfile`; returns undefined if neither is set. Throws UsageError. */
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

/** Reads a file with one `host [slots=N]` per line, as in Open MPI and DeepSpeed. `#` begins a comment. */
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

/** Splits a text at whitespace. Whitespace in quotes does not separate words. */
function splitWords(text: string): readonly string[] {
  const words = text.match(/(?:[^\s'"]|'[^']*'|"[^"]*")+/g) ?? [];
  return words.map((word) => word.replaceAll(/'([^']*)'|"([^"]*)"/g, "$1$2"));
}

/**
 * Whether a value is from SLURM. SLURM's values describe the allocation and are ignored here, because the hosts are
 * listed.
 */
const isSchedulerSource = (source: string): boolean => source.startsWith("SLURM_");

/** Parses `--nnodes`, whose maximum must equal the number of hosts. `MIN:MAX` adds the minimum number of nodes. */
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

/** Options that are not passed to agents. The launcher derives other options of each host from them. */
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
  // A job on one host needs neither a node rank nor an endpoint.
  if (overrides["node-rank"] === undefined) for (const name of ["node-rank", "rdzv-endpoint"]) hostOptions.delete(name);
  for (const [name, value] of Object.entries(overrides)) hostOptions.set(name, { value, source });
  if (slots !== undefined) hostOptions.set("nproc-per-node", { value: String(slots), source });
  return hostOptions;
}

/** Options for the output of the launcher, which are not passed to agents. Agents write JSON. */
const CONSOLE_OPTIONS = ["json", "color", "log-prefix", "dry-run", "help", "version"];

/** Formats a host's options as a command line. `--env` is omitted because other users can read command lines. */
export function formatAgentOptions(sources: ReadonlyMap<string, SourcedValue>): readonly string[] {
  return OPTIONS.flatMap(({ name, kind }) => {
    const { value, source } = sources.get(name) ?? { value: undefined, source: "default" };
    if (value === undefined || source === "default" || name === "env" || CONSOLE_OPTIONS.includes(name)) return [];
    if (kind === "list") return (value as readonly string[]).map((item) => `--${name}=${item}`);
    return [value === true ? `--${name}` : `--${name}=${String(value)}`];
  });
}

/** Returns whether a host is this machine, so that ssh is not needed. */
export const isLocal = ({ target, name }: Host): boolean => target === name && isThisNode(name);
