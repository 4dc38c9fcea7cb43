import { isIP } from "node:net";
import { hostname, networkInterfaces } from "node:os";
import { relative } from "node:path";
import { UsageError } from "../errors.ts";
import type { LaunchOptions } from "../job.ts";
import { DEFAULT_RDZV_PORT, MAX_NODES, type NodeRange, parseEndpoint, parseNodeRange } from "./endpoint.ts";
import { JOB_NODE_COUNT_VARIABLES } from "./sources.ts";
import type { OptionValues } from "./values.ts";

const MAX_PORT = 65_535;
type NodeOptions = Pick<
  LaunchOptions,
  "nnodes" | "nodeRank" | "rdzvEndpoint" | "rdzvTimeoutMs" | "lastCallMs" | "bindAny" | "masterPort"
>;

/**
 * Parses the options for the nodes of a job, which are named as in torchrun. `argv` is used in messages. Throws
 * UsageError.
 */
export function parseNodes(values: OptionValues, argv: readonly string[] = []): NodeOptions {
  const range = parseNodeRange(values.text("nnodes") ?? "1");
  if (range === undefined) throw values.invalidValueError("nnodes", `N or MIN:MAX with at most ${MAX_NODES} nodes`);
  const backend = values.text("rdzv-backend");
  if (backend !== undefined && backend !== "static" && backend !== "c10d")
    throw values.invalidValueError("rdzv-backend", "static or c10d (both select the launcher's own rendezvous)");
  const isSingleNode = range.max === 1;
  return isSingleNode ? parseSingleNode(values) : parseMultiNode(values, range, argv);
}

/** Parses the options of a job on one node, and rejects values that refer to other nodes. */
function parseSingleNode(values: OptionValues): NodeOptions {
  if ((values.count("node-rank", 0) ?? 0) > 0) throw values.invalidValueError("node-rank", "0, because --nnodes is 1");
  // Without --standalone, torchrun uses a rendezvous endpoint. With one node the job is the same, so only the
  // value is checked.
  values.flag("standalone");
  const address = values.text("master-addr");
  if (address !== undefined && !isThisNode(address))
    throw values.invalidValueError("master-addr", "an address of this node, because --nnodes is 1");
  const masterPort = values.count("master-port", 0, MAX_PORT);
  const endpoint = resolveEndpoint(values);
  if (endpoint === undefined) return masterPort === undefined ? {} : { masterPort };
  if (!isThisNode(endpoint.host))
    throw values.invalidValueError("rdzv-endpoint", "an address of this node, because --nnodes is 1");
  if (masterPort && endpoint.port && masterPort !== endpoint.port)
    throw values.invalidValueError("rdzv-endpoint", `port ${masterPort} as in --master-port, or no port`);
  const port = masterPort || endpoint.port;
  return port === undefined ? {} : { masterPort: port };
}

function parseMultiNode(values: OptionValues, { min, max }: NodeRange, argv: readonly string[]): NodeOptions {
  const count = min === max ? String(max) : `${min}:${max}`;
  if (JOB_NODE_COUNT_VARIABLES.includes(values.source("nnodes")))
    throw new UsageError(
      `the batch script of a job with ${count} nodes (${values.source("nnodes")}) runs only on the first node; start the launcher on each node with ` +
        `${srunCommand(argv, max)}, or pass --nnodes 1 to use only this node`,
    );
  if (values.flag("standalone") && values.source("standalone") !== "default")
    throw values.invalidValueError("standalone", `false, because --nnodes is ${count}`);
  const nodeRank = values.count("node-rank", 0, max - 1);
  if (nodeRank === undefined) throw values.invalidValueError("node-rank", `the rank of this node, 0 to ${max - 1}`);
  const endpoint = resolveEndpoint(values) ?? masterEndpoint(values);
  if (endpoint === undefined || endpoint.host === "")
    throw values.invalidValueError(
      "rdzv-endpoint",
      `the address of node 0, host or host:port (port ${DEFAULT_RDZV_PORT})`,
    );
  const host = endpoint.host.includes(":") ? `[${endpoint.host}]` : endpoint.host;
  const timeoutMs = values.durationMs("rdzv-timeout");
  const lastCallMs = values.durationMs("last-call");
  return {
    ...{ nnodes: count, nodeRank, rdzvEndpoint: `${host}:${endpoint.port ?? DEFAULT_RDZV_PORT}` },
    ...(timeoutMs === undefined ? {} : { rdzvTimeoutMs: timeoutMs }),
    ...(lastCallMs === undefined ? {} : { lastCallMs }),
    bindAny: values.flag("bind-any"),
  };
}

/**
 * Returns the srun command that starts the same job on all nodes. If a node has several tasks, its launcher starts one
 * rank per task. The command does not use npx: npm and its shell would run between srun and the launcher, and exit at
 * the first SIGUSR1.
 */
function srunCommand(argv: readonly string[], nodes: number): string {
  const tasksOption = Number(process.env.SLURM_NTASKS ?? nodes) > nodes ? "" : "--ntasks-per-node=1 ";
  const words = argv.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`));
  const program = process.argv[1] ?? "mosaic-run";
  const path = relative(process.cwd(), program);
  const command = path.startsWith("..") ? program : path;
  return `srun ${tasksOption}--kill-on-bad-exit=0 ${command} ${words.join(" ") || "[options] <entry>"}`;
}

function resolveEndpoint(values: OptionValues): ReturnType<typeof parseEndpoint> {
  const text = values.text("rdzv-endpoint");
  if (text === undefined || text === "") return undefined;
  const endpoint = parseEndpoint(text);
  if (endpoint === undefined) throw values.invalidValueError("rdzv-endpoint", "host or host:port");
  if (endpoint.port !== undefined && endpoint.port > MAX_PORT)
    throw values.invalidValueError("rdzv-endpoint", `a port up to ${MAX_PORT}`);
  return endpoint;
}

/** Returns the endpoint from `--master-addr` and `--master-port`, as in torchrun's static rendezvous. */
function masterEndpoint(values: OptionValues): ReturnType<typeof parseEndpoint> {
  const host = values.text("master-addr");
  return host === undefined ? undefined : { host, port: values.count("master-port", 0, MAX_PORT) || undefined };
}

/** Returns whether a host name or address is known to be of this machine. Names are not resolved. */
export function isThisNode(host: string): boolean {
  if (host === "localhost" || host === "[::1]" || host === "::1") return true;
  if (isIP(host) > 0) return (isIP(host) === 4 && host.startsWith("127.")) || isOwnAddress(host);
  const nodeHostname = hostname();
  return host === nodeHostname || host.startsWith(`${nodeHostname}.`);
}

function isOwnAddress(host: string): boolean {
  const interfaces = Object.values(networkInterfaces()).flatMap((interfaceAddresses) => interfaceAddresses ?? []);
  return interfaces.some(({ address }) => address === host);
}
