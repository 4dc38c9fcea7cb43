/** Syntax of an option: a flag, one value, or a list with one value per occurrence. */
type OptionKind = "flag" | "value" | "list";

/** One row of the option table, which defines parsing, `--help`, `--dry-run` and the README. */
export interface OptionSpec {
  readonly name: string;
  readonly kind: OptionKind;
  readonly shortName?: string;
  /** Name of the value in `--help`. */
  readonly value?: string;
  /** Default value as a user would write it; absent if there is none. */
  readonly default?: string;
  /** The value that `--no-<name>` sets, for an option that is not a flag. */
  readonly negatedName?: string;
  /** Whether the option is also read from PET_<NAME>, as in torchrun. */
  readonly isTorchElastic?: boolean;
  readonly helpText: string;
}

/** Specification of a command of this package, for parsing its command line. */
export interface CommandSpec {
  readonly name: string;
  readonly options: readonly OptionSpec[];
  /** Replacements for options that the command does not have, by name in kebab-case. */
  readonly hints: Readonly<Record<string, string>>;
}

/** The option `--color` of all commands. */
export const COLOR_OPTION: OptionSpec = {
  name: "color",
  kind: "value",
  value: "auto|always|never",
  negatedName: "never",
  default: "auto",
  helpText: "colors",
};

export const OPTIONS: readonly OptionSpec[] = [
  {
    name: "nproc-per-node",
    kind: "value",
    shortName: "n",
    value: "N|auto|cpu|gpu",
    default: "auto",
    isTorchElastic: true,
    helpText: "ranks per node; gpu: one per GPU; auto: one per GPU, else 1; cpu: one per core",
  },
  { name: "exec", kind: "flag", helpText: "run <entry> as a program instead of with Node" },
  { name: "node-arg", kind: "list", value: "ARG", helpText: "option passed to node, such as --node-arg=--inspect-brk" },
  { name: "import", kind: "list", value: "MODULE", helpText: "module that node imports before the entry" },
  {
    name: "env",
    kind: "list",
    value: "NAME[=VALUE]",
    helpText: "set an environment variable on all ranks; without =VALUE, copy the launcher's value",
  },
  {
    name: "threads",
    kind: "value",
    value: "N",
    helpText: "number of CPU threads per rank, MOSAIC_THREADS [cores / ranks]",
  },
  {
    name: "role",
    kind: "value",
    value: "NAME",
    default: "default",
    isTorchElastic: true,
    helpText: "role of the ranks, passed to them as ROLE_NAME",
  },
  {
    name: "grace",
    kind: "value",
    value: "TIME",
    default: "30s",
    helpText: "time from the first signal or timeout to SIGKILL",
  },
  {
    name: "failure-grace",
    kind: "value",
    value: "TIME",
    default: "500ms",
    helpText: "time from a rank's failure to SIGKILL of the other ranks",
  },
  {
    name: "timeout",
    kind: "value",
    value: "TIME",
    negatedName: "off",
    default: "off",
    helpText: "terminate the job after this time; 0 disables the timeout",
  },
  {
    name: "max-restarts",
    kind: "value",
    value: "N",
    default: "0",
    isTorchElastic: true,
    helpText: "maximum number of restarts of all ranks on failure",
  },
  {
    name: "restart-backoff",
    kind: "value",
    value: "TIME",
    default: "1s",
    helpText: "delay before the first restart; doubles with each restart, up to 30s",
  },
  {
    name: "restart-reset",
    kind: "value",
    value: "TIME",
    default: "10m",
    helpText: "after an attempt that ran at least this long, the delay begins with --restart-backoff again",
  },
  {
    name: "min-uptime",
    kind: "value",
    value: "TIME",
    default: "10s",
    helpText: "end the job after two consecutive failures, each within this time of the start of its attempt",
  },
  {
    name: "log-dir",
    kind: "value",
    value: "DIR",
    isTorchElastic: true,
    helpText: "write logs to DIR/<run id> [a temporary directory, kept only on failure]",
  },
  {
    name: "trace",
    kind: "value",
    value: "DIR",
    helpText: "trace all ranks and write the page DIR/<run id>/index.html",
  },
  {
    name: "log-prefix",
    kind: "value",
    value: "TEXT",
    default: "[{rank}] ",
    helpText: "prefix of output lines; fields: {rank} {host} {attempt} {stream}",
  },
  {
    name: "console-ranks",
    kind: "value",
    value: "all|none|0,2-3",
    helpText: "ranks to show on the console [all up to 8 ranks, else rank 0]",
  },
  COLOR_OPTION,
  { name: "json", kind: "flag", helpText: "print output lines and events as JSON, one object per line" },
  {
    name: "dry-run",
    kind: "flag",
    helpText: "print option values, their sources and the environment of each rank, and exit",
  },
  {
    name: "nnodes",
    kind: "value",
    shortName: "N",
    value: "N|MIN:MAX",
    default: "1",
    isTorchElastic: true,
    helpText: "number of nodes, or a range MIN:MAX; start mosaic-run on each node",
  },
  {
    name: "node-rank",
    kind: "value",
    value: "N",
    isTorchElastic: true,
    helpText: "rank of this node; node 0 hosts the rendezvous",
  },
  {
    name: "standalone",
    kind: "flag",
    default: "true",
    isTorchElastic: true,
    helpText: "run on one node; no effect with --nnodes 1",
  },
  {
    name: "rdzv-id",
    kind: "value",
    value: "NAME",
    isTorchElastic: true,
    helpText: "name of the job, the same on all nodes",
  },
  {
    name: "rdzv-backend",
    kind: "value",
    value: "static|c10d",
    isTorchElastic: true,
    helpText: "rendezvous backend; both values select the launcher's own",
  },
  {
    name: "rdzv-endpoint",
    kind: "value",
    value: "HOST[:PORT]",
    isTorchElastic: true,
    helpText: "address of node 0; default port 29400",
  },
  {
    name: "rdzv-timeout",
    kind: "value",
    value: "TIME",
    default: "300s",
    helpText: "timeout for all nodes to join the rendezvous",
  },
  {
    name: "last-call",
    kind: "value",
    value: "TIME",
    default: "5s",
    helpText: "time to wait for more nodes after MIN nodes of MIN:MAX have joined",
  },
  { name: "bind-any", kind: "flag", helpText: "node 0 listens on all interfaces, not only on the endpoint's address" },
  { name: "master-addr", kind: "value", value: "HOST", isTorchElastic: true, helpText: "same as --rdzv-endpoint" },
  {
    name: "master-port",
    kind: "value",
    value: "PORT",
    default: "0",
    isTorchElastic: true,
    helpText: "port of the store in a single-node job; 0: any free port",
  },
  {
    name: "hosts",
    kind: "value",
    value: "A,B:SLOTS,…",
    helpText: "start the job on these hosts over ssh; A is node 0",
  },
  {
    name: "hostfile",
    kind: "value",
    value: "FILE",
    helpText: "read the hosts from a file, one host [slots=N] per line",
  },
  {
    name: "ssh",
    kind: "value",
    value: "COMMAND",
    default: "ssh",
    helpText: 'command to connect to the hosts, such as "ssh -p 2222"',
  },
  { name: "agent-stdin", kind: "flag", helpText: "internal, set by --hosts: read the secret and signals from stdin" },
  { name: "help", kind: "flag", shortName: "h", helpText: "show this help" },
  { name: "version", kind: "flag", shortName: "V", helpText: "show the versions of mosaic-run and Node" },
];

/** Returns the option with a name in kebab-case or snake_case. */
export const findOption = (name: string, options: readonly OptionSpec[] = OPTIONS): OptionSpec | undefined =>
  options.find((spec) => spec.name === name.replaceAll("_", "-"));

/** Formats the lines of `--help` that list options. */
export function formatOptionRows(options: readonly OptionSpec[]): string {
  const rows = options.map(({ name, shortName, value, default: defaultValue, helpText }) => {
    const optionUsage = `${shortName === undefined ? "    " : `-${shortName}, `}--${name}${value === undefined ? "" : ` ${value}`}`;
    const defaultText = defaultValue === undefined || defaultValue.trim() !== defaultValue ? "" : ` [${defaultValue}]`;
    return `  ${optionUsage.padEnd(36)} ${helpText}${defaultText}`;
  });
  return rows.join("\n");
}

/** Returns the text of `mosaic-run --help`. */
export function helpText(): string {
  return `Usage: mosaic-run [options] <entry> [entry arguments]

Starts the ranks of a job, monitors them, and terminates them together. For a job on several nodes, run it once with
--hosts A,B (requires ssh), or run it on each node with -N 2, --node-rank 0 or 1, --rdzv-endpoint HOST and the same secret
in MOSAIC_TOKEN_FILE. Options must precede the entry; arguments after the entry are passed to the entry.

${formatOptionRows(OPTIONS)}

All options are also read from MOSAIC_<NAME> (except --node-arg, --import and --env), then mosaic.launch.json, then
PET_<NAME> or SLURM.
TIME is 500ms, 30s, 2m or 1h; a number without a unit is in seconds. The standard input of ranks is empty.
Exit code: 0 success, the exit code of the first rank that failed, 128 + signal, 2 usage error, 75 port in use or node lost,
70 launcher bug, 124 timeout.
`;
}
