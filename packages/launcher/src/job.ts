/** The command of a job, and how it is started and monitored. Times are in milliseconds. */
export interface LaunchOptions {
  /** A .js, .mjs, .cjs, .ts or .mts file, relative to `cwd`; with `exec`, a program. */
  readonly entry: string;
  readonly args?: readonly string[];
  /** Runs `entry` as a program instead of with Node. */
  readonly exec?: boolean;
  /** Working directory of the ranks; default: that of this process. */
  readonly cwd?: string;
  /** Environment variables of all ranks, which override those of this process. */
  readonly env?: Readonly<Record<string, string>>;
  readonly nodeArgs?: readonly string[];
  /** Modules that node imports before the entry. */
  readonly imports?: readonly string[];
  /** Default `auto`: one per GPU, else 1. `cpu`: one per core. */
  readonly nprocPerNode?: number | "auto" | "cpu" | "gpu";
  /** CPU threads per rank. Default: MOSAIC_THREADS if it is set, else cores / ranks, at least 1. */
  readonly threads?: number;
  readonly role?: string;
  /** Name of the job. The run id is the name with a random suffix. It must be the same on all nodes. */
  readonly rdzvId?: string;
  /**
   * Number of nodes, or `MIN:MAX`. Default 1. Several nodes require a shared secret in MOSAIC_TOKEN_FILE or
   * MOSAIC_TOKEN.
   */
  readonly nnodes?: number | string;
  /** Rank of this node, from 0. Required for several nodes. */
  readonly nodeRank?: number;
  /** `host` or `host:port` of node 0, for the rendezvous. Default port 29400. Required for several nodes. */
  readonly rdzvEndpoint?: string;
  /** Timeout for all nodes to join the rendezvous. Default 300 000. */
  readonly rdzvTimeoutMs?: number;
  /** With `MIN:MAX` nodes: time to wait for more nodes after MIN nodes have joined. Default 5000. */
  readonly lastCallMs?: number;
  /** Node 0 listens on all its interfaces, not only on the endpoint's address. */
  readonly bindAny?: boolean;
  /** Default 0: any free port. */
  readonly masterPort?: number;
  /** Time from the first signal or the timeout to SIGKILL. Default 30 000. */
  readonly graceMs?: number;
  /** Time from a rank's failure to SIGKILL of the other ranks. Default 500. */
  readonly failureGraceMs?: number;
  /** Time after which the job is terminated. Default 0: no timeout. */
  readonly timeoutMs?: number;
  /** Maximum number of restarts. Default 0. */
  readonly maxRestarts?: number;
  /** Delay before the first restart. It doubles with each restart, up to 30 s. Default 1000. */
  readonly restartBackoffMs?: number;
  /**
   * After an attempt that ran at least this long, the delay begins with `restartBackoffMs` again. Default 600 000, as
   * in Kubernetes. Does not affect `maxRestarts`, which counts all restarts.
   */
  readonly restartResetMs?: number;
  /** Two consecutive failures, each within this time of the start, end the job. Default 10 000. */
  readonly minUptimeMs?: number;
  /**
   * Logs are kept in `<logDir>/<run id>`. Default: a temporary directory, removed when the job succeeds, else after a
   * week.
   */
  readonly logDir?: string;
  /** Traces all ranks (MOSAIC_TRACE_DIR) and writes the page `<traceDir>/<run id>/index.html` when they have exited. */
  readonly traceDir?: string;
  /** Lets ranks use colors (FORCE_COLOR), for output that is shown on a terminal. */
  readonly color?: boolean;
  /** Ends the job like SIGTERM. */
  readonly abort?: AbortSignal;
  /** Called for every line and event, in order. Must not block: ranks wait until their output is read. */
  readonly onEvent?: (event: LaunchEvent) => void;
}

/** Output stream of a rank. */
export type StreamName = "stdout" | "stderr";

/** Exit of a rank's process. */
export interface Exit {
  readonly rank: number;
  readonly pid: number;
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  /** Milliseconds since the start of the process. */
  readonly afterMs: number;
}

/** Exit of a rank, classified by how the other ranks exited. */
export interface RankExit extends Exit {
  /**
   * `ok`: exit code 0. `failed`: by itself. `peer-lost`: because another rank was lost. `stopped`: ended by the
   * launcher.
   */
  readonly verdict: "ok" | "failed" | "peer-lost" | "stopped";
}

/** An uncaught error, as recorded by a rank's preload. */
export interface RankError {
  readonly name: string;
  readonly message: string;
  readonly stack?: string;
  readonly code?: string;
  /** Section of the documentation with causes and remedies. Only errors of Mosaic have it. */
  readonly help?: string;
  readonly cause?: RankError;
  /** The errors of an AggregateError. */
  readonly errors?: readonly RankError[];
}

/** The first failure of an attempt: the root cause and its consequences. */
export interface Failure {
  readonly attempt: number;
  readonly node: string;
  /** Rank of the node; absent in a job on one node. */
  readonly nodeRank?: number;
  readonly rank: number;
  readonly local: number;
  readonly pid: number;
  readonly afterMs: number;
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  /** The rank's exit code as in a shell: 128 + n for signal n. */
  readonly exitCode: number;
  /** The error that the rank threw, if known. */
  readonly error?: RankError;
  /** The last lines of stderr, if the error does not state its location. */
  readonly stderrTail: readonly string[];
  /** The source line that Node prints for a syntax error, whose stack has no frame for it. */
  readonly source?: readonly string[];
  /** Meaning of the exit code or signal, and a remedy. */
  readonly hint?: string;
  readonly log: string;
  /** Directory with the logs of all ranks; in a job on several nodes, of those of node 0. */
  readonly logDir?: string;
  /** Whether the logs are temporary. Temporary logs of all jobs are kept for a week, up to 1 GB in total. */
  readonly areLogsTemporary?: boolean;
  /** Why the job was not restarted although it had restarts left. */
  readonly noRestartReason?: string;
  /** Ranks that the launcher ended. */
  readonly stopped: readonly number[];
  /** Other ranks that failed or lost a peer, with the reason. */
  readonly secondary: readonly { readonly rank: number; readonly reason: string }[];
}

/** A node whose launcher has exited or cannot be reached. */
export interface LostNode {
  readonly attempt: number;
  readonly nodeRank: number;
  readonly node: string;
  readonly reason: string;
  readonly afterMs: number;
}

/** Result of a job. */
export interface Result {
  readonly outcome: "succeeded" | "failed" | "cancelled" | "timed-out";
  /** 0, the exit code of the first failure, 128 + n for signal n, 124 after a timeout, or 75 when a node was lost. */
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

/** A line of a rank's output, without the line end. */
export interface LineEvent extends EventHeader {
  readonly type: "line";
  readonly rank: number;
  readonly attempt: number;
  readonly stream: StreamName;
  /** `progress`: will be overwritten by the next line. `part`: a piece of a line longer than 1 MiB, to be continued. */
  readonly kind: "line" | "progress" | "part";
  readonly text: string;
  /**
   * The line is part of an uncaught error that Node prints. If it is the first failure, `failure` contains the error,
   * too.
   */
  readonly uncaught?: true;
}

/** Everything that a job reports while it runs. */
export type LaunchEvent =
  | LineEvent
  | (EventHeader & { type: "start"; runId: string; worldSize: number; store: string; logDir: string })
  | (EventHeader & { type: "spawn"; rank: number; pid: number; attempt: number })
  | (EventHeader & { type: "exit"; attempt: number } & Exit)
  /** The rank's log file `log` cannot be written. It is incomplete from here on, and the job continues. */
  | (EventHeader & { type: "log-failed"; rank: number; attempt: number; log: string; reason: string })
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
  /** `remote`: the failure is reported by node 0, not by this node. */
  | (EventHeader & { type: "failure"; failure: Failure; remote?: true })
  /** `page` is the page with the traces of `ranks` ranks. `reason` is set if no page was written. */
  | (EventHeader & { type: "trace"; directory: string; ranks: number; page?: string; reason?: string })
  | (EventHeader & { type: "restart"; attempt: number; delayMs: number })
  | (EventHeader & { type: "end"; result: Result });

/** An event without time and node, which are added when it is emitted. */
export type EventBody = LaunchEvent extends infer E
  ? E extends LaunchEvent
    ? Omit<E, keyof EventHeader>
    : never
  : never;
/** Receives the events of the launcher's components. */
export type EventListener = (event: EventBody) => void;
