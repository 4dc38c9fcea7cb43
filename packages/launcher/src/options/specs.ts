/** How an option is written: a switch, one value, or a value each time it is given. */
type OptionKind = "flag" | "value" | "list";

/** One row of the option table: what parsing, `--help`, `--dry-run` and the README agree on. */
export interface OptionSpec {
  readonly name: string;
  readonly kind: OptionKind;
  readonly shortName?: string;
  /** How the value is named in `--help`. */
  readonly value?: string;
  /** As the user would write it; absent: nothing. */
  readonly default?: string;
  /** What `--no-<name>` means for an option that is not a flag. */
  readonly negatedName?: string;
  /** torchrun reads this one from PET_<NAME> too. */
  readonly isTorchElastic?: boolean;
  readonly helpText: string;
}

/** A command of this package: what parsing its command line takes. */
export interface CommandSpec {
  readonly name: string;
  readonly options: readonly OptionSpec[];
  /** What to write in place of options that it does not have, by name in kebab-case. */
  readonly hints: Readonly<Record<string, string>>;
}

/** The same for every command. */
export const COLOR_OPTION: OptionSpec = {
  name: "color",
  kind: "value",
  value: "auto|always|never",
  negatedName: "never",
  default: "auto",
  helpText: "colours",
};

export const OPTIONS: readonly OptionSpec[] = [
  {
    name: "nproc-per-node",
    kind: "value",
    shortName: "n",
    value: "N|auto|cpu|gpu",
    default: "auto",
    isTorchElastic: true,
    helpText: "ranks to start; auto: one per GPU, else 1",
  },
  { name: "exec", kind: "flag", helpText: "run <entry> as a program, not with Node" },
  { name: "node-arg", kind: "list", value: "ARG", helpText: "an option for node itself, as --node-arg=--inspect-brk" },
  { name: "import", kind: "list", value: "MODULE", helpText: "a module that node imports before the entry" },
  {
    name: "env",
    kind: "list",
    value: "NAME[=VALUE]",
    helpText: "set an environment variable on all ranks; without =VALUE, copy the launcher's value",
  },
  { name: "threads", kind: "value", value: "N", helpText: "MOSAIC_THREADS of a rank [cores / ranks]" },
  {
    name: "role",
    kind: "value",
    value: "NAME",
    default: "default",
    isTorchElastic: true,
    helpText: "ROLE_NAME of the ranks",
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
    helpText: "delay before a restart; doubles up to 30s",
  },
  {
    name: "min-uptime",
    kind: "value",
    value: "TIME",
    default: "10s",
    helpText: "two failures in a row sooner than this end the job",
  },
  {
    name: "log-dir",
    kind: "value",
    value: "DIR",
    isTorchElastic: true,
    helpText: "keep logs in DIR/<run id> [a temporary directory, kept only on failure]",
  },
  {
    name: "trace",
    kind: "value",
    value: "DIR",
    helpText: "have ranks trace themselves, and write the page DIR/<run id>/index.html",
  },
  {
    name: "log-prefix",
    kind: "value",
    value: "TEXT",
    default: "[{rank}] ",
    helpText: "before each line: {rank} {host} {attempt} {stream}",
  },
  {
    name: "console-ranks",
    kind: "value",
    value: "all|none|0,2-3",
    helpText: "ranks to show [all up to 8 ranks, else 0]",
  },
  COLOR_OPTION,
  { name: "json", kind: "flag", helpText: "lines and events as JSON, one object a line" },
  { name: "dry-run", kind: "flag", helpText: "print every value, where it comes from, and every rank's environment" },
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
    helpText: "number of this node; 0 has the rendezvous",
  },
  {
    name: "standalone",
    kind: "flag",
    default: "true",
    isTorchElastic: true,
    helpText: "one node; with --nnodes 1 it changes nothing",
  },
  {
    name: "rdzv-id",
    kind: "value",
    value: "NAME",
    isTorchElastic: true,
    helpText: "a name for the job, the same on all nodes",
  },
  {
    name: "rdzv-backend",
    kind: "value",
    value: "static|c10d",
    isTorchElastic: true,
    helpText: "both mean the launcher's own store",
  },
  {
    name: "rdzv-endpoint",
    kind: "value",
    value: "HOST[:PORT]",
    isTorchElastic: true,
    helpText: "address of node 0; port 29400",
  },
  {
    name: "rdzv-timeout",
    kind: "value",
    value: "TIME",
    default: "300s",
    helpText: "timeout of the rendezvous of all nodes",
  },
  {
    name: "last-call",
    kind: "value",
    value: "TIME",
    default: "5s",
    helpText: "with MIN:MAX nodes: wait for more once MIN are there",
  },
  { name: "bind-any", kind: "flag", helpText: "node 0 listens on all interfaces, not only on the endpoint's address" },
  { name: "master-addr", kind: "value", value: "HOST", isTorchElastic: true, helpText: "as --rdzv-endpoint" },
  {
    name: "master-port",
    kind: "value",
    value: "PORT",
    default: "0",
    isTorchElastic: true,
    helpText: "the store's port on one node; 0: any",
  },
  {
    name: "hosts",
    kind: "value",
    value: "A,B:SLOTS,…",
    helpText: "start the job on these hosts over ssh, A being node 0",
  },
  { name: "hostfile", kind: "value", value: "FILE", helpText: "the same from a file: host [slots=N] a line" },
  { name: "ssh", kind: "value", value: "COMMAND", default: "ssh", helpText: 'how hosts are reached, as "ssh -p 2222"' },
  { name: "agent-stdin", kind: "flag", helpText: "what --hosts starts on each host: secret and signals come by stdin" },
  { name: "help", kind: "flag", shortName: "h", helpText: "show this help" },
  { name: "version", kind: "flag", shortName: "V", helpText: "the launcher's version" },
];

/** The option a user may have meant: by name, in kebab-case or snake_case. */
export const findOption = (name: string, options: readonly OptionSpec[] = OPTIONS): OptionSpec | undefined =>
  options.find((spec) => spec.name === name.replaceAll("_", "-"));

/** The lines of `--help` that list options. */
export function optionRows(options: readonly OptionSpec[]): string {
  const rows = options.map(({ name, shortName, value, default: byDefault, helpText }) => {
    const written = `${shortName === undefined ? "    " : `-${shortName}, `}--${name}${value === undefined ? "" : ` ${value}`}`;
    const shown = byDefault === undefined || byDefault.trim() !== byDefault ? "" : ` [${byDefault}]`;
    return `  ${written.padEnd(36)} ${helpText}${shown}`;
  });
  return rows.join("\n");
}

/** The text of `mosaic-run --help`. */
export function helpText(): string {
  return `Usage: mosaic-run [options] <entry> [entry arguments]

Starts the ranks of a job, watches them, and ends them together. On several nodes, once with --hosts A,B, which needs ssh;
or run it on each: -N 2 --node-rank 0 or 1, --rdzv-endpoint HOST, and the same secret in MOSAIC_TOKEN_FILE.
Options end at the entry; everything after it is the entry's own.

${optionRows(OPTIONS)}

Every option is also read from MOSAIC_<NAME> (but --node-arg, --import and --env), then mosaic.launch.json, then
PET_<NAME> or SLURM.
TIME is 500ms, 30s, 2m or 1h; a number without a unit is seconds. Ranks have an empty stdin.
Exit code: 0, the first failing rank's, 128 + signal, 2 usage, 75 port taken or node lost, 70 launcher bug, 124 timeout.
`;
}
