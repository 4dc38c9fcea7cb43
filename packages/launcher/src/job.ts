/** What to run and how to watch over it. Times are in milliseconds. */
export interface LaunchOptions {
  /** A .js, .mjs, .cjs, .ts or .mts file, relative to `cwd`; with `exec`, a program. */
  readonly entry: string;
  readonly args?: readonly string[];
  /** Run `entry` as a program instead of with Node. */
  readonly exec?: boolean;
  /** Where the ranks run; default: here. */
  readonly cwd?: string;
  /** Variables for every rank, over this process's own. */
  readonly env?: Readonly<Record<string, string>>;
  readonly nodeArgs?: readonly string[];
  /** Modules that node imports before the entry. */
  readonly imports?: readonly string[];
  /** Default `auto`: one per GPU, else 1. `cpu`: one per core. */
  readonly nprocPerNode?: number | "auto" | "cpu" | "gpu";
  /** Default: cores / ranks, at least 1, unless MOSAIC_THREADS is set already. */
  readonly threads?: number;
  readonly role?: string;
  /** A name for the job; the run id is this and a random suffix. On several nodes it must be the same. */
  readonly rdzvId?: string;
  /** Nodes of the job: a number, or `MIN:MAX`. Default 1. More than one need the secret MOSAIC_TOKEN_FILE or MOSAIC_TOKEN. */
  readonly nnodes?: number | string;
  /** The number of this node, from 0; required for several. */
  readonly nodeRank?: number;
  /** `host` or `host:port` of node 0, where the nodes rendezvous; port 29400. Required for several. */
  readonly rdzvEndpoint?: string;
  /** Until all nodes are there; 300 000. */
  readonly rdzvTimeoutMs?: number;
  /** With `MIN:MAX` nodes: how long to wait for more once MIN are there; 5000. */
  readonly lastCallMs?: number;
  /** Node 0 listens on all its interfaces, not only on the endpoint's address. */
  readonly bindAny?: boolean;
  /** Default 0: any free port. */
  readonly masterPort?: number;
  /** From the first signal, or the timeout, to SIGKILL; 30 000. */
  readonly graceMs?: number;
  /** From a rank's failure to SIGKILL of the others; 500. */
  readonly failureGraceMs?: number;
  /** Ends the job; 0, the default: never. */
  readonly timeoutMs?: number;
  /** 0 */
  readonly maxRestarts?: number;
  /** Before the first restart; doubles up to 30 s. 1000. */
  readonly restartBackoffMs?: number;
  /** Two failures in a row, each sooner than this after its start, end the job; 10 000. */
  readonly minUptimeMs?: number;
  /** Keep logs in `<logDir>/<run id>`; default: a temporary directory, removed when the job succeeds, else after a week. */
  readonly logDir?: string;
  /** Have ranks trace themselves (MOSAIC_TRACE_DIR), and write the page `<traceDir>/<run id>/index.html` when they have ended. */
  readonly traceDir?: string;
  /** Make ranks use colours (FORCE_COLOR), because what they write ends on a terminal. */
  readonly color?: boolean;
  /** Ends the job as SIGTERM would. */
  readonly abort?: AbortSignal;
  /** Called for every line and event, in order. Must not block: ranks wait until their output is read. */
  readonly onEvent?: (event: LaunchEvent) => void;
}

export type StreamName = "stdout" | "stderr";

/** A rank's process is gone. */
export interface Exit {
  readonly rank: number;
  readonly pid: number;
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  /** Milliseconds since it was started. */
  readonly afterMs: number;
}

/** How one rank ended, seen with how the others did. */
export interface RankExit extends Exit {
  /** `ok`; `failed`: of its own accord; `peer-lost`: because another was gone; `stopped`: the launcher ended it. */
  readonly verdict: "ok" | "failed" | "peer-lost" | "stopped";
}

/** An error as a rank's preload wrote it down. */
export interface RankError {
  readonly name: string;
  readonly message: string;
  readonly stack?: string;
  readonly code?: string;
  /** Where the documentation has its causes and remedies; errors of Mosaic have it. */
  readonly help?: string;
  readonly cause?: RankError;
  /** Of an AggregateError. */
  readonly errors?: readonly RankError[];
}

/** The first failure of an attempt: the root cause, and what followed from it. */
export interface Failure {
  readonly attempt: number;
  readonly node: string;
  /** The number of the node; absent where there is one. */
  readonly nodeRank?: number;
  readonly rank: number;
  readonly local: number;
  readonly pid: number;
  readonly afterMs: number;
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  /** The rank's exit code as a shell would see it: 128 + n for signal n. */
  readonly exitCode: number;
  /** What the rank threw, when it is known. */
  readonly error?: RankError;
  /** The last lines of its stderr, when that does not state where. */
  readonly stderrTail: readonly string[];
  /** The line of source that Node names for a syntax error, which has no frame there. */
  readonly source?: readonly string[];
  /** What the exit code or signal means, and what to do. */
  readonly hint?: string;
  readonly log: string;
  /** The logs of all ranks. */
  readonly logDir?: string;
  /** Whether they are temporary: kept for a week, and up to 1 GB together with those of other jobs. */
  readonly areLogsTemporary?: boolean;
  /** Why the job was not restarted although it had restarts left. */
  readonly noRestartReason?: string;
  /** Ranks that the launcher ended. */
  readonly stopped: readonly number[];
  /** Ranks that failed because of this one, and how. */
  readonly secondary: readonly { readonly rank: number; readonly reason: string }[];
}

/** A node whose launcher is gone, or cannot be reached. */
export interface LostNode {
  readonly attempt: number;
  readonly nodeRank: number;
  readonly node: string;
  readonly reason: string;
  readonly afterMs: number;
}

/** What became of a job. */
export interface Result {
  readonly outcome: "succeeded" | "failed" | "cancelled" | "timed-out";
  /** 0; the root cause's; 128 + n for signal n; 124 after a timeout; 75 when a node was lost. */
  readonly exitCode: number;
  readonly runId: string;
  readonly attempts: number;
  readonly seconds: number;
  /** The ranks of the last attempt on this node. */
  readonly ranks: readonly RankExit[];
  readonly failure?: Failure;
  /** The node whose loss ended the job. */
  readonly lost?: LostNode;
  /** Absent when the logs were temporary and the job succeeded. */
  readonly logDir?: string;
}

interface EventHeader {
  /** Milliseconds since the epoch. */
  readonly time: number;
  readonly node: string;
}

/** A line of a rank's output, without its end. */
export interface LineEvent extends EventHeader {
  readonly type: "line";
  readonly rank: number;
  readonly attempt: number;
  readonly stream: StreamName;
  /** `progress` will be overwritten by the next; `part` is a piece of a line longer than 1 MiB, which goes on. */
  readonly kind: "line" | "progress" | "part";
  readonly text: string;
  /** Part of Node's print of an uncaught error, which `failure` has, too, if it is the first. */
  readonly uncaught?: true;
}

/** Everything that a job reports while it runs. */
export type LaunchEvent =
  | LineEvent
  | (EventHeader & { type: "start"; runId: string; worldSize: number; store: string; logDir: string })
  | (EventHeader & { type: "spawn"; rank: number; pid: number; attempt: number })
  | (EventHeader & { type: "exit"; attempt: number } & Exit)
  | (EventHeader & {
      type: "stop";
      attempt: number;
      reason: string;
      signal: NodeJS.Signals;
      ranks: number[];
      graceMs: number;
    })
  | (EventHeader & { type: "kill"; attempt: number; reason: string; ranks: number[] })
  | (EventHeader & { type: "orphans"; attempt: number; pids: number[] })
  | (EventHeader & { type: "rendezvous"; message: string })
  | (EventHeader & { type: "node-lost"; lost: LostNode })
  /** `remote`: node 0 reports it. */
  | (EventHeader & { type: "failure"; failure: Failure; remote?: true })
  /** The page of `ranks` ranks that traced themselves; without it, why there is none. */
  | (EventHeader & { type: "trace"; directory: string; ranks: number; page?: string; reason?: string })
  | (EventHeader & { type: "restart"; attempt: number; delayMs: number })
  | (EventHeader & { type: "end"; result: Result });

/** An event before it is stamped with time and node. */
export type EventBody = LaunchEvent extends infer E
  ? E extends LaunchEvent
    ? Omit<E, keyof EventHeader>
    : never
  : never;
/** Where the parts of the launcher send events. */
export type EventListener = (event: EventBody) => void;
