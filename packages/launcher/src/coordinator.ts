import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Agent as ControlAgent } from "./agent/agent.ts";
import { type AttemptDecision, RestartPolicy, type StopRequest } from "./restart-policy.ts";
import { RendezvousError, UsageError } from "./errors.ts";
import type { EventListener } from "./job.ts";
import type { LaunchPlan } from "./launch-plan.ts";
import { diagnose, type RankRecord } from "./report/diagnose.ts";
import { findPortOwner } from "./report/port-owner.ts";
import { StoreServer } from "./store/server.ts";

/** A node's share of one attempt: which ranks are its own, and where the whole job meets. */
export interface Assignment {
  /** The same on all nodes of a job. */
  readonly runId: string;
  readonly attempt: number;
  readonly worldSize: number;
  /** This node's first rank; its others follow. */
  readonly firstRank: number;
  readonly groupRank: number;
  readonly groupWorldSize: number;
  /** Host and port of the store, as MASTER_ADDR and MASTER_PORT. */
  readonly host: string;
  readonly port: number;
  /** MOSAIC_STORE */
  readonly store: string;
  /** Where other nodes reach this one. */
  readonly nodeAddress: string;
  readonly tokenFile: string;
  /** Socket of this node's control-plane agent. */
  readonly agent: string;
}

/** What a rank's end means, as only its node can see. */
export type FindHint = (record: RankRecord) => string | undefined;

/** What a coordinator may do to this node's ranks. */
export interface NodeControl {
  /** The attempt is over elsewhere. */
  stopRanks(reason: string): void;
  /** The job was signalled to end on another node. */
  end(request: StopRequest): void;
  kill(reason: string): void;
  /** Whether this node was signalled to end. */
  isEnding(): boolean;
  readonly emit: EventListener;
}

/**
 * Decides for the whole job: where the store is, how the attempts are numbered, which ranks are a node's, what ended an
 * attempt, and whether another follows. LocalCoordinator does that for one node; of several nodes, node 0 has a
 * RootCoordinator and each other one a MemberCoordinator.
 */
export interface Coordinator {
  /** A directory of this job's own, for secrets; removed by close. */
  readonly privateDir: string;
  /** Resolves when every node is there; to undefined once the job is to end. */
  beginAttempt(): Promise<Assignment | undefined>;
  /** A rank of this node has failed: those of other nodes are ended, too. */
  reportFailing(rank: number): void;
  /** A rank of this node has exited with 0: ranks that wait for it to join need not. */
  reportSucceeded(rank: number): void;
  /** No rank of this node is left. Resolves when none is on any node. */
  endAttempt(records: readonly RankRecord[], findHint: FindHint): Promise<AttemptDecision>;
  /** This node was signalled to end, or its timeout has passed. */
  stop(request: StopRequest): void;
  /** Ends the ranks of all nodes now. */
  kill(reason: string): void;
  close(): Promise<void>;
}

/** Runs one node's ranks for one attempt. The other half of the seam: a node's agent is the same however many there are. */
export interface Agent {
  run(assignment: Assignment): Promise<readonly RankRecord[]>;
}

/** The path of a socket has at most 107 bytes. */
const MAX_TMPDIR_BYTES = 80;

/** The coordinator of a job that lives on this machine alone. */
export class LocalCoordinator implements Coordinator {
  readonly #plan: LaunchPlan;
  readonly #store: StoreServer;
  readonly #agent: ControlAgent;
  readonly #policy: RestartPolicy;
  readonly privateDir: string;
  #attempt = -1;
  #startTime = 0;
  #stopRequest: StopRequest | undefined;

  private constructor(plan: LaunchPlan, store: StoreServer, agent: ControlAgent, privateDir: string) {
    this.#plan = plan;
    this.#store = store;
    this.#agent = agent;
    this.#policy = new RestartPolicy(plan);
    this.privateDir = privateDir;
    writeFileSync(this.#tokenFile, `${store.token}\n`, { mode: 0o600 });
  }

  /**
   * Binds the store, and the control plane's socket. Throws RendezvousError when the store's port is taken, naming who has
   * it; UsageError when binding it is not permitted.
   */
  static async open(plan: LaunchPlan): Promise<LocalCoordinator> {
    const privateDir = makePrivateDir();
    let store: StoreServer | undefined;
    try {
      store = await openStore(plan);
      const path = join(privateDir, "agent");
      const agent = await ControlAgent.listen({ path, secret: store.token, host: plan.node });
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

  /** The agent of this node has ended the others already. */
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

/** A directory that only this user may enter. */
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

/** The error for a port that cannot be bound; undefined where that has another reason. */
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
