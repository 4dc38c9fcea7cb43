import { fileURLToPath } from "node:url";
import type { Command } from "../entry.ts";
import { type Host, isLocal } from "../options/hosts.ts";

const CLI_PATH = fileURLToPath(new URL("./cli.js", import.meta.url));

/** Options of OpenSSH. They follow the user's options, because ssh uses the first value of an option. */
const SSH_OPTIONS = ["BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3"];
/** Shows only errors. Otherwise banners and notes on host keys would be mixed with the output. */
const QUIET_OPTION = "LogLevel=ERROR";

/** Written by the script below if it cannot start the agent. `describeStartFailure` returns the message for it. */
const NO_DIRECTORY_MARKER = "mosaic-run-host: no-directory";
const NO_NODE_MARKER = "mosaic-run-host: no-node";
const NO_LAUNCHER_MARKER = "mosaic-run-host: no-launcher";

/**
 * Starts the agent on another host: $1 is the working directory, $2 Node, $3 the launcher. The remaining arguments are
 * options. Node is first searched at the same path as here, because PATH of a non-interactive shell often does not
 * contain it.
 */
const REMOTE_SCRIPT = [
  `cd "$1" 2>/dev/null || { echo "${NO_DIRECTORY_MARKER}" >&2; exit 2; }`,
  `node=$2; [ -x "$node" ] || node=$(command -v node) || { echo "${NO_NODE_MARKER}" >&2; exit 2; }`,
  `cli=$3; [ -f "$cli" ] || { echo "${NO_LAUNCHER_MARKER}" >&2; exit 2; }`,
  `shift 3; exec "$node" "$cli" "$@"`,
].join("; ");

/** Command of a host's agent. It contains neither the secret nor environment variables. */
export interface AgentCommand {
  readonly ssh: readonly string[];
  readonly cwd: string;
  /** Options, entry and the entry's arguments. */
  readonly args: readonly string[];
}

/** Returns the command that starts the agent of a host: over ssh, or directly if the host is this machine. */
export function agentCommand(host: Host, { ssh, cwd, args }: AgentCommand): Command {
  const launcherArgs = ["--agent-stdin", ...args];
  if (isLocal(host)) return { program: process.execPath, args: [CLI_PATH, ...launcherArgs] };
  const [program = "ssh", ...options] = ssh;
  // ssh passes one text to the user's remote shell. Single quotes have the same meaning in all shells.
  const remoteCommand = [
    "/bin/sh",
    "-c",
    REMOTE_SCRIPT,
    "mosaic-run",
    cwd,
    process.execPath,
    CLI_PATH,
    ...launcherArgs,
  ];
  const sshOptions = [...options, ...[...SSH_OPTIONS, QUIET_OPTION].flatMap((option) => ["-o", option]), "-T"];
  return { program, args: [...sshOptions, host.target, `exec ${remoteCommand.map(shellQuote).join(" ")}`] };
}

const shellQuote = (word: string): string =>
  /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", String.raw`'\''`)}'`;

/** Reason why an agent could not be started. */
export interface StartFailure {
  readonly message: string;
  /** 2: the cause must be corrected first. 75: the failure may be transient. */
  readonly exitCode: 2 | 75;
}

/** Exit of ssh or of an agent that has not started. */
export interface AgentExit {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  /** Lines that ssh or the remote shell wrote to stderr. */
  readonly stderr: readonly string[];
  /** Error code if the program of `--ssh` could not be started. */
  readonly spawnError?: string | undefined;
}

interface FailurePattern {
  readonly pattern: RegExp;
  readonly error: string;
  readonly remedy: (target: string, command: AgentCommand) => string;
  readonly exitCode: 2 | 75;
}

const FAILURE_PATTERNS: readonly FailurePattern[] = [
  {
    pattern: new RegExp(NO_DIRECTORY_MARKER),
    error: "the working directory does not exist",
    remedy: (_, { cwd }) => `the agent must start in ${cwd}: share the file system, or copy the project to that path`,
    exitCode: 2,
  },
  {
    pattern: new RegExp(NO_NODE_MARKER),
    error: "Node is missing",
    remedy: () => `install Node there as ${process.execPath}, or add it to PATH for non-interactive shells`,
    exitCode: 2,
  },
  {
    pattern: new RegExp(NO_LAUNCHER_MARKER),
    error: "@mosaic/launcher is missing",
    remedy: () => `expected ${CLI_PATH}: share the file system, or run npm ci there in the same directory`,
    exitCode: 2,
  },
  {
    pattern: /Could not resolve hostname|[Nn]ame or service not known|name resolution/,
    error: "unknown host",
    remedy: () => "correct the host name, or add it to DNS, /etc/hosts or ~/.ssh/config",
    exitCode: 2,
  },
  {
    pattern: /Host key verification failed|HOST IDENTIFICATION HAS CHANGED/,
    error: "host key verification failed",
    remedy: (target) => `log in once interactively and verify the key: ssh ${target}`,
    exitCode: 2,
  },
  {
    pattern: /Permission denied|Too many authentication failures/,
    error: "permission denied",
    remedy: (target) =>
      `set up ssh login without a password (ssh-copy-id ${target}, or ssh-add); pass --hosts user@host for a different user`,
    exitCode: 2,
  },
  {
    pattern: /Connection refused/,
    error: "connection refused",
    remedy: () => 'start sshd on that host, or pass the port of sshd: --ssh "ssh -p PORT"',
    exitCode: 75,
  },
  {
    pattern: /timed out|No route to host|unreachable|Connection (closed|reset)/i,
    error: "cannot connect",
    remedy: (target) => `check that the host is up and that no firewall blocks ssh: ssh ${target} true`,
    exitCode: 75,
  },
];

/** Describes why an agent could not be started, with a remedy. */
export function describeStartFailure(host: Host, exit: AgentExit, command: AgentCommand): StartFailure {
  const { target, name } = host;
  const [program = "ssh"] = command.ssh;
  if (exit.spawnError !== undefined && !isLocal(host))
    return {
      message: `host ${name}: cannot start ${program} (${exit.spawnError}); install the OpenSSH client, or pass a different command with --ssh`,
      exitCode: 2,
    };
  const cause = FAILURE_PATTERNS.find(({ pattern }) => exit.stderr.some((line) => pattern.test(line)));
  if (cause !== undefined) {
    const line = exit.stderr.find((stderrLine) => cause.pattern.test(stderrLine)) ?? "";
    const stderrExcerpt = line.startsWith("mosaic-run-host") ? "" : ` (${line.trim()})`;
    const { error, remedy, exitCode } = cause;
    return { message: `host ${name}: ${error}${stderrExcerpt}; ${remedy(target, command)}`, exitCode };
  }
  const exitText = exit.spawnError ?? (exit.signal === null ? `exit ${exit.code}` : `killed by ${exit.signal}`);
  const lastLine = exit.stderr.findLast((line) => line.trim() !== "");
  return {
    message: `host ${name}: ${isLocal(host) ? "the agent" : program} exited before the agent started (${exitText})${lastLine === undefined ? "" : `: ${lastLine.trim()}`}`,
    exitCode: exit.code === 2 ? 2 : 75,
  };
}
