import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Agent } from "./agent/agent.ts";
import { type AttemptDecision, RestartPolicy, type StopRequest } from "./restart-policy.ts";
import { RendezvousError, UsageError } from "./errors.ts";
import type { EventListener } from "./job.ts";
import type { LaunchPlan } from "./launch-plan.ts";
import { diagnose, type RankRecord } from "./report/diagnose.ts";
import { findPortOwner } from "./report/port-owner.ts";
import { StoreServer } from "./store/server.ts";

/** A node's part of one attempt: its ranks, and the addresses of the store and the control plane. */
export interface Assignment {
  /** The same on all nodes of a job. */
  readonly runId: string;
  readonly attempt: number;
  readonly worldSize: number;
  /** The first rank of this node. Its ranks are consecutive. */
  readonly firstRank: number;
  readonly groupRank: number;
  readonly groupWorldSize: number;
  /** Host and port of the store, as MASTER_ADDR and MASTER_PORT. */
  readonly host: string;
  readonly port: number;
  /** Address of the store, as in MOSAIC_STORE. */
  readonly store: string;
  /** Address at which other nodes reach this node. */
  readonly nodeAddress: string;
  readonly tokenFile: string;
  /** Socket of this node's control-plane agent. */
  readonly agent: string;
}

/** Explains a rank's exit. Only the rank's node can determine it. */
export type FindHint = (record: RankRecord) => string | undefined;

/** Operations of a coordinator on this node's ranks. */
export interface NodeControl {
  /** Ends the ranks because the attempt has ended on another node. */
  stopRanks(reason: string): void;
  /** Ends the job because another node was signalled to end it. */
  end(request: StopRequest): void;
  kill(reason: string): void;
  /** Whether this node was signalled to end. */
  isEnding(): boolean;
  readonly emit: EventListener;
}

/**
 * Decides for the whole job: the address of the store, the numbers of the attempts, the ranks of each node, the cause
 * of an attempt's end, and whether the job is restarted. A job on one node has a LocalCoordinator. In a job on several
 * nodes, node 0 has a RootCoordinator and each other node a MemberCoordinator.
 */
export interface Coordinator {
  /** A private directory of this job for secrets, which `close` removes. */
  readonly privateDir: string;
  /** Resolves when all nodes have joined; resolves to undefined if the job is to end. */
  beginAttempt(): Promise<Assignment | undefined>;
  /** Reports that a rank of this node has failed, so that the ranks of other nodes are ended, too. */
  reportFailing(rank: number): void;
  /** Reports that a rank of this node has exited with 0, so that other ranks do not wait for it to join. */
  reportSucceeded(rank: number): void;
  /** Reports that all ranks of this node have exited. Resolves when the ranks of all nodes have exited. */
  endAttempt(records: readonly RankRecord[], findHint: FindHint): Promise<AttemptDecision>;
  /** Reports that this node was signalled to end, or that the job's timeout has passed. */
  stop(request: StopRequest): void;
  /** Ends the ranks of all nodes now. */
  kill(reason: string): void;
  close(): Promise<void>;
}

/** Bound for the directory, because the path of a socket has at most 107 bytes. */
const MAX_TMPDIR_BYTES = 80;

/** The coordinator of a job on one node. */
export class LocalCoordinator implements Coordinator {
  readonly #plan: LaunchPlan;
  readonly #store: StoreServer;
  readonly #agent: Agent;
  readonly #policy: RestartPolicy;
  readonly privateDir: string;
  #attempt = -1;
  #startTime = 0;
  #stopRequest: StopRequest | undefined;

  private constructor(plan: LaunchPlan, store: StoreServer, agent: Agent, privateDir: string) {
    this.#plan = plan;
    this.#store = store;
    this.#agent = agent;
    this.#policy = new RestartPolicy(plan);
    this.privateDir = privateDir;
    writeFileSync(this.#tokenFile, `${store.token}\n`, { mode: 0o600 });
  }

  /**
   * Binds the port of the store and the socket of the control plane. Throws RendezvousError if the store's port is in
   * use, with the process that uses it, and UsageError if binding it is not permitted.
   */
  static async open(plan: LaunchPlan): Promise<LocalCoordinator> {
    const privateDir = makePrivateDir();
    let store: StoreServer | undefined;
    try {
      store = await openStore(plan);
      const path = join(privateDir, "agent");
      const agent = await Agent.listen({ path, secret: store.token, host: plan.node });
      return new LocalCoordinator(plan, store, agent, privateDir);
    } catch (error) {
      await store?.close();
      rmSync(privateDir, { recursive: true, force: true });
      throw error;
    }
  }

  get #tokenFile(): string {
    return join(this.privateDir, "token");
  }

  async beginAttempt(): Promise<Assignment | undefined> {
    if (this.#stopRequest !== undefined) return undefined;
    const attempt = ++this.#attempt;
    this.#startTime = Date.now();
    this.#store.beginAttempt(attempt);
    const { host, port, address: store } = this.#store;
    const assignmentFields = { firstRank: 0, groupRank: 0, groupWorldSize: 1, nodeAddress: host };
    const { runId, nproc: worldSize } = this.#plan;
    const { path: agent } = this.#agent;
    return { runId, attempt, worldSize, ...assignmentFields, host, port, store, tokenFile: this.#tokenFile, agent };
  }

  /** Does nothing, because this node has already ended the other ranks. */
  reportFailing(): void {}

  reportSucceeded(rank: number): void {
    const { runId, nproc: size } = this.#plan;
    this.#agent.recordExit({ runId, attempt: this.#attempt, size }, rank);
  }

  async endAttempt(records: readonly RankRecord[], findHint: FindHint): Promise<AttemptDecision> {
    const attempt = this.#attempt;
    const failure = diagnose(records, { number: attempt, node: this.#plan.node }, findHint);
    return this.#policy.decide({ attempt, uptimeMs: Date.now() - this.#startTime, failure, stop: this.#stopRequest });
  }

  stop(request: StopRequest): void {
    this.#stopRequest ??= request;
  }

  kill(): void {}

  async close(): Promise<void> {
    await this.#agent.close();
    await this.#store.close();
    rmSync(this.privateDir, { recursive: true, force: true });
  }
}

/** Creates a directory that only this user may enter. */
export function makePrivateDir(): string {
  const baseDirectory = Buffer.byteLength(tmpdir()) <= MAX_TMPDIR_BYTES ? tmpdir() : "/tmp";
  try {
    return mkdtempSync(join(baseDirectory, "mosaic-run-"));
  } catch (error) {
    throw new UsageError(
      `cannot create a directory in ${baseDirectory}: ${(error as Error).message}; set TMPDIR to a different directory`,
    );
  }
}

async function openStore(plan: LaunchPlan): Promise<StoreServer> {
  try {
    return await StoreServer.listen({ runId: plan.runId, port: plan.masterPort });
  } catch (error) {
    throw portError(error, plan.masterPort, "--master-port") ?? error;
  }
}

/** Returns the error for a port that is in use or not permitted; undefined for any other reason. */
export function portError(error: unknown, port: number, option: string): UsageError | RendezvousError | undefined {
  const { code } = error as NodeJS.ErrnoException;
  if (code === "EACCES")
    return new UsageError(`${option} ${port}: ports below 1024 require root; choose a port ≥ 1024`);
  if (code !== "EADDRINUSE") return undefined;
  const owner = findPortOwner(port) ?? "another process";
  const remedy =
    option === "--master-port" ? `omit ${option} to use any free port` : "choose a different port on all nodes";
  return new RendezvousError(`port ${port} is in use by ${owner}; ${remedy}`);
}
