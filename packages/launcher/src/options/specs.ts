/** How an option is written: a switch, one value, or a value each time it is given. */
type OptionKind = "flag" | "value" | "list";

/** One row of the option table: what parsing, `--help`, `--dry-run` and the README agree on. */
export interface OptionSpec {
  readonly name: string;
  readonly kind: OptionKind;
  readonly short?: string;
  /** How the value is named in `--help`. */
  readonly value?: string;
  /** As the user would write it; absent: nothing. */
  readonly default?: string;
  /** What `--no-<name>` means for an option that is not a flag. */
  readonly negated?: string;
  /** torchrun reads this one from PET_<NAME> too. */
  readonly pet?: boolean;
  readonly help: string;
}

export const OPTIONS: readonly OptionSpec[] = [
  {
    name: "nproc-per-node",
    kind: "value",
    short: "n",
    value: "N|auto|cpu|gpu",
    default: "auto",
    pet: true,
    help: "ranks to start; auto: one per GPU, else 1",
  },
  { name: "exec", kind: "flag", help: "run <entry> as a program, not with Node" },
  { name: "node-arg", kind: "list", value: "ARG", help: "an option for node itself, as --node-arg=--inspect-brk" },
  { name: "import", kind: "list", value: "MODULE", help: "a module that node imports before the entry" },
  { name: "env", kind: "list", value: "NAME[=VALUE]", help: "a variable for every rank; without =VALUE as it is here" },
  { name: "threads", kind: "value", value: "N", help: "MOSAIC_THREADS of a rank [cores / ranks]" },
  { name: "role", kind: "value", value: "NAME", default: "default", pet: true, help: "ROLE_NAME of the ranks" },
  {
    name: "grace",
    kind: "value",
    value: "TIME",
    default: "30s",
    help: "from the first signal or timeout to SIGKILL",
  },
  {
    name: "failure-grace",
    kind: "value",
    value: "TIME",
    default: "500ms",
    help: "from a rank's failure to SIGKILL of the others",
  },
  {
    name: "timeout",
    kind: "value",
    value: "TIME",
    negated: "off",
    default: "off",
    help: "end the job after this long; 0: off",
  },
  {
    name: "max-restarts",
    kind: "value",
    value: "N",
    default: "0",
    pet: true,
    help: "restarts of all ranks on failure",
  },
  { name: "restart-backoff", kind: "value", value: "TIME", default: "1s", help: "before a restart; doubles up to 30s" },
  {
    name: "min-uptime",
    kind: "value",
    value: "TIME",
    default: "10s",
    help: "two failures in a row sooner than this end the job",
  },
  {
    name: "log-dir",
    kind: "value",
    value: "DIR",
    pet: true,
    help: "keep logs in DIR/<run id> [a temporary directory, kept only on failure]",
  },
  {
    name: "log-prefix",
    kind: "value",
    value: "TEXT",
    default: "[{rank}] ",
    help: "before each line: {rank} {host} {attempt} {stream}",
  },
  { name: "console-ranks", kind: "value", value: "all|none|0,2-3", help: "ranks to show [all up to 8 ranks, else 0]" },
  { name: "color", kind: "value", value: "auto|always|never", negated: "never", default: "auto", help: "colours" },
  { name: "json", kind: "flag", help: "lines and events as JSON, one object a line" },
  { name: "dry-run", kind: "flag", help: "print every value, where it comes from, and every rank's environment" },
  {
    name: "nnodes",
    kind: "value",
    short: "N",
    value: "N|MIN:MAX",
    default: "1",
    pet: true,
    help: "nodes of the job; start mosaic-run on each",
  },
  { name: "node-rank", kind: "value", value: "N", pet: true, help: "number of this node; 0 has the rendezvous" },
  {
    name: "standalone",
    kind: "flag",
    default: "true",
    pet: true,
    help: "one node; with --nnodes 1 it changes nothing",
  },
  { name: "rdzv-id", kind: "value", value: "NAME", pet: true, help: "a name for the job, the same on all nodes" },
  { name: "rdzv-backend", kind: "value", value: "static|c10d", pet: true, help: "both mean the launcher's own store" },
  { name: "rdzv-endpoint", kind: "value", value: "HOST[:PORT]", pet: true, help: "address of node 0; port 29400" },
  {
    name: "rdzv-timeout",
    kind: "value",
    value: "TIME",
    default: "300s",
    help: "until all nodes are there",
  },
  {
    name: "last-call",
    kind: "value",
    value: "TIME",
    default: "5s",
    help: "with MIN:MAX nodes: wait for more once MIN are there",
  },
  { name: "bind-any", kind: "flag", help: "node 0 listens on all interfaces, not on the endpoint's address alone" },
  { name: "master-addr", kind: "value", value: "HOST", pet: true, help: "as --rdzv-endpoint" },
  {
    name: "master-port",
    kind: "value",
    value: "PORT",
    default: "0",
    pet: true,
    help: "the store's port on one node; 0: any",
  },
  { name: "hosts", kind: "value", value: "A,B:SLOTS,…", help: "start the job on these hosts over ssh, A being node 0" },
  { name: "hostfile", kind: "value", value: "FILE", help: "the same from a file: host [slots=N] a line" },
  { name: "ssh", kind: "value", value: "COMMAND", default: "ssh", help: 'how hosts are reached, as "ssh -p 2222"' },
  { name: "agent-stdin", kind: "flag", help: "what --hosts starts on each host: secret and signals come by stdin" },
  { name: "help", kind: "flag", short: "h", help: "this text" },
  { name: "version", kind: "flag", short: "V", help: "the launcher's version" },
];

/** The option a user may have meant: by name, in kebab-case or snake_case. */
export const findOption = (name: string): OptionSpec | undefined =>
  OPTIONS.find((spec) => spec.name === name.replaceAll("_", "-"));

/** The text of `--help`. */
export function helpText(): string {
  const rows = OPTIONS.map(({ name, short, value, default: byDefault, help }) => {
    const written = `${short === undefined ? "    " : `-${short}, `}--${name}${value === undefined ? "" : ` ${value}`}`;
    const shown = byDefault === undefined || byDefault.trim() !== byDefault ? "" : ` [${byDefault}]`;
    return `  ${written.padEnd(36)} ${help}${shown}`;
  });
  return `Usage: mosaic-run [options] <entry> [entry arguments]

Starts the ranks of a job, watches them, and ends them together. On several nodes, once with --hosts A,B, which needs ssh;
or run it on each: -N 2 --node-rank 0 or 1, --rdzv-endpoint HOST, and the same secret in MOSAIC_TOKEN_FILE.
Options end at the entry; everything after it is the entry's own.

${rows.join("\n")}

Every option is also read from MOSAIC_<NAME> (but --node-arg, --import and --env), then mosaic.launch.json, then
PET_<NAME> or SLURM.
TIME is 500ms, 30s, 2m or 1h; a number without a unit is seconds. Ranks have an empty stdin.
Exit code: 0, the first failing rank's, 128 + signal, 2 usage, 75 port taken or node lost, 70 launcher bug, 124 timeout.
`;
}
