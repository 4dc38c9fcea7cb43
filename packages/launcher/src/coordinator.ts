import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Agent as ControlAgent } from "./agent/agent.ts";
import { RendezvousError, UsageError } from "./errors.ts";
import type { LaunchPlan } from "./launch-plan.ts";
import type { RankRecord } from "./report/diagnose.ts";
import { portOwner } from "./report/port-owner.ts";
import { StoreServer } from "./store/server.ts";

/** A node's share of one attempt: which ranks are its own, and where the whole job meets. */
export interface Assignment {
  readonly attempt: number;
  readonly worldSize: number;
  /** This node's first rank; its others follow. */
  readonly firstRank: number;
  readonly groupRank: number;
  readonly groupWorldSize: number;
  /** Host and port of the store. */
  readonly host: string;
  readonly port: number;
  readonly tokenFile: string;
  /** Socket of this node's control-plane agent. */
  readonly agent: string;
}

/**
 * Decides for the whole job: hosts the store, numbers the attempts, gives each node its ranks.
 *
 * One node needs no more than LocalCoordinator. Several nodes will need one that agents reach over the network; they
 * will see this interface and nothing else.
 */
export interface Coordinator {
  /** Where the store listens, `host:port`. */
  readonly store: string;
  /** A directory of this job's own, for secrets; removed by close. */
  readonly privateDir: string;
  /** Resolves when every node is there. */
  beginAttempt(attempt: number): Promise<Assignment>;
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
  readonly privateDir: string;

  private constructor(plan: LaunchPlan, store: StoreServer, agent: ControlAgent, privateDir: string) {
    this.#plan = plan;
    this.#store = store;
    this.#agent = agent;
    this.privateDir = privateDir;
    writeFileSync(this.#tokenFile, `${store.token}\n`, { mode: 0o600 });
  }

  /**
   * Binds the store, and the control plane's socket. Throws RendezvousError when the store's port is taken, naming who has
   * it; UsageError when binding it is not permitted.
   */
  static async open(plan: LaunchPlan): Promise<LocalCoordinator> {
    const base = Buffer.byteLength(tmpdir()) <= MAX_TMPDIR_BYTES ? tmpdir() : "/tmp";
    const privateDir = makePrivateDir(base);
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

  get store(): string {
    return this.#store.address;
  }

  get #tokenFile(): string {
    return join(this.privateDir, "token");
  }

  async beginAttempt(attempt: number): Promise<Assignment> {
    this.#store.beginAttempt(attempt);
    const { host, port } = this.#store;
    const place = { firstRank: 0, groupRank: 0, groupWorldSize: 1 };
    const { path: agent } = this.#agent;
    return { attempt, worldSize: this.#plan.nproc, ...place, host, port, tokenFile: this.#tokenFile, agent };
  }

  async close(): Promise<void> {
    await this.#agent.close();
    await this.#store.close();
    rmSync(this.privateDir, { recursive: true, force: true });
  }
}

function makePrivateDir(base: string): string {
  try {
    return mkdtempSync(join(base, "mosaic-run-"));
  } catch (error) {
    throw new UsageError(`no directory can be created in ${base}: ${(error as Error).message}; set TMPDIR to another`);
  }
}

async function openStore(plan: LaunchPlan): Promise<StoreServer> {
  try {
    return await StoreServer.listen({ runId: plan.runId, port: plan.masterPort });
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "EACCES")
      throw new UsageError(`--master-port ${plan.masterPort}: ports below 1024 require root; choose one from 1024`);
    if (code !== "EADDRINUSE") throw error;
    const owner = portOwner(plan.masterPort) ?? "another process";
    throw new RendezvousError(
      `port ${plan.masterPort} is in use by ${owner}; leave out --master-port to use any free port`,
    );
  }
}
