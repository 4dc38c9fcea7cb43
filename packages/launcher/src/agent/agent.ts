import { once } from "node:events";
import { createServer, type Server } from "node:net";
import { hostname } from "node:os";
import type { Duplex } from "node:stream";
import { isSameSecret } from "../secret.ts";
import { Channel } from "./channel.ts";
import { FAILURE_CODES, decode, type FrameOf, peekHello, MAGIC, PROTOCOL_VERSION, ROLES } from "./frames.ts";
import { type Listener, type Network, tcpNetwork } from "./network.ts";
import { Parent } from "./parent.ts";
import { bindSocketFile, type SocketFile } from "./socket-file.ts";
import { ProtocolError } from "./wire.ts";
import { type Branch, type JobAttempt, WorldTable } from "./worlds.ts";

/** Maximum number of children of an agent by default. It must be the same in the whole tree. */
export const DEFAULT_FAN_OUT = 16;

/** The shape of the tree: agent `i` is a child of agent `(i − 1) / fanOut`, rounded down. */
class AgentTree {
  readonly #agentRank: number;
  readonly #fanOut: number;
  /** Addresses at which agents listen for children. */
  readonly #addresses = new Map<number, string>();
  /** Agents whose parent has not connected yet, by the parent's number. */
  readonly #pendingChildren = new Map<number, Channel[]>();

  constructor(agentRank: number, fanOut: number) {
    this.#agentRank = agentRank;
    this.#fanOut = fanOut;
  }

  /**
   * Attaches an agent that has sent its hello as a child of this agent, or redirects it to its parent once that is
   * known.
   */
  attach(channel: Channel, agentRank: number, address: string): "child" | "redirected" | "duplicate" {
    const parent = Math.floor((agentRank - 1) / this.#fanOut);
    const isChild = parent === this.#agentRank;
    if (agentRank === this.#agentRank || (isChild && this.#addresses.has(agentRank))) return "duplicate";
    this.#addresses.set(agentRank, address);
    for (const pendingChild of this.#pendingChildren.get(agentRank) ?? []) redirect(pendingChild, address);
    this.#pendingChildren.delete(agentRank);
    if (isChild) return "child";
    const parentAddress = this.#addresses.get(parent);
    if (parentAddress !== undefined) redirect(channel, parentAddress);
    else this.#pendingChildren.set(parent, [...(this.#pendingChildren.get(parent) ?? []), channel]);
    return "redirected";
  }

  /** Removes a child that was lost. */
  remove(agentRank: number): void {
    this.#addresses.delete(agentRank);
  }
}

function redirect(channel: Channel, address: string): void {
  channel.send({ kind: "redirect", address });
  channel.finish();
}

/** Addresses of an agent, and its position in the tree of agents. */
export interface AgentOptions {
  /** The Unix socket for the ranks of this host, in a directory that only this user may enter. */
  readonly path: string;
  /** The job's secret. Default: none, so that only the directory's permissions protect the socket. */
  readonly secret?: string;
  /** Name of the host in messages; default: the system's host name. */
  readonly host?: string;
  /** Number of this agent; 0, the default, is the root. */
  readonly index?: number;
  /** Address of the root agent; required for all other agents. */
  readonly root?: string;
  /** Whether other agents may connect; default: true for all agents except the root. */
  readonly children?: boolean;
  /** Network between agents; default: TCP on the loopback interface. */
  readonly network?: Network;
  /** Maximum number of children of an agent, the same in the whole tree. Default 16. */
  readonly fanOut?: number;
  /** Milliseconds between heartbeats of agents. Default 500. */
  readonly heartbeatMs?: number;
  /** Milliseconds without a heartbeat after which an agent is considered lost. Default 2500. */
  readonly heartbeatTimeoutMs?: number;
  /** Called when the last connection has ended. */
  readonly onIdle?: () => void;
}

const HANDSHAKE_TIMEOUT_MS = 10_000;
const MAX_CONNECTIONS = 16_384;

/**
 * The control-plane agent of one host. Ranks connect to its socket, and the agents of several hosts form a tree. All
 * frames are specified in docs/control-plane.md.
 */
export class Agent implements AsyncDisposable {
  readonly path: string;
  readonly #options: AgentOptions;
  readonly #index: number;
  readonly #host: string;
  readonly #heartbeatMs: number;
  readonly #heartbeatTimeoutMs: number;
  readonly #server: Server = createServer();
  readonly #tree: AgentTree;
  /** Connections of ranks and agents, including those without a hello yet. */
  readonly #connections = new Set<Channel>();
  readonly #observers = new Set<Channel>();
  /** Numbers of the child agents, by connection. */
  readonly #children = new Map<Branch, number>();
  #socketFile: SocketFile | undefined;
  #listener: Listener | undefined;
  #parent: Parent | undefined;
  #worlds: WorldTable;
  #heartbeat: NodeJS.Timeout | undefined;
  #lastTickAt = performance.now();
  #hasConnections = false;
  #isClosed = false;

  private constructor(options: AgentOptions) {
    this.#options = options;
    this.path = options.path;
    this.#index = options.index ?? 0;
    this.#host = options.host ?? hostname();
    this.#heartbeatMs = options.heartbeatMs ?? 500;
    this.#heartbeatTimeoutMs = options.heartbeatTimeoutMs ?? 2500;
    this.#tree = new AgentTree(this.#index, options.fanOut ?? DEFAULT_FAN_OUT);
    this.#worlds = new WorldTable({ agent: this.#index, name: this.#host }, undefined);
    this.#server.maxConnections = MAX_CONNECTIONS;
    this.#server.on("connection", (socket) => this.#accept(socket));
  }

  /** Starts an agent. Rejects with EADDRINUSE if another agent listens at the path, or with the system's error. */
  static async listen(options: AgentOptions): Promise<Agent> {
    const agent = new Agent(options);
    try {
      await agent.#start();
    } catch (error) {
      await agent.close();
      throw error;
    }
    return agent;
  }

  /** Address to which other agents connect; undefined if other agents may not connect. */
  get address(): string | undefined {
    return this.#listener?.address;
  }

  /** Number of connections of ranks and child agents, including those without a hello yet, but without observers. */
  get connections(): number {
    return this.#connections.size;
  }

  /** Whether a rank or agent has ever sent a valid hello. */
  get hasConnections(): boolean {
    return this.#hasConnections;
  }

  /** Removes the socket's path, so that ranks can no longer find it. Connections remain open. */
  unlink(): void {
    this.#socketFile?.unlink();
  }

  /** Restores the socket's path. Rejects with EADDRINUSE if another agent listens there. */
  async restoreSocketFile(): Promise<void> {
    await this.#socketFile?.restore();
  }

  /**
   * Records that the process of a rank has exited with 0. The launcher calls it, because a rank may never have
   * connected.
   */
  recordExit(job: JobAttempt, rank: number): void {
    this.#worlds.recordExit(job, rank);
  }

  /** Closes all connections. The socket's path is already removed when this returns, before it resolves. */
  async close(): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    clearInterval(this.#heartbeat);
    this.#socketFile?.release();
    this.#listener?.close();
    this.#parent?.close();
    this.#worlds.close("the agent of this host exited");
    for (const channel of [...this.#connections, ...this.#observers]) channel.destroy();
    if (!this.#server.listening) return;
    const closeEvent = once(this.#server, "close");
    this.#server.close();
    await closeEvent;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #start(): Promise<void> {
    const { root, children = this.#index > 0, network = tcpNetwork(), secret = "" } = this.#options;
    if (this.#index > 0 && root === undefined)
      throw new TypeError(`Agent: root: expected the root agent's address for agent ${this.#index}, received none`);
    if (children) this.#listener = await network.listen((stream) => this.#accept(stream));
    if (root !== undefined && this.#index > 0) {
      const agentFields = { agent: this.#index, host: this.#host, address: this.#listener?.address ?? "" };
      const protocol = { magic: MAGIC, version: PROTOCOL_VERSION, secret, role: ROLES.agent };
      const hello: FrameOf<"hello"> = { kind: "hello", ...protocol, ...agentFields };
      this.#parent = new Parent({ network, root, hello, onLost: (refusal) => this.#onParentLost(refusal) });
      this.#worlds = new WorldTable({ agent: this.#index, name: this.#host }, this.#parent);
    }
    this.#heartbeat = setInterval(() => this.#tick(), this.#heartbeatMs).unref();
    this.#socketFile = await bindSocketFile(this.#server, this.path);
  }

  #onParentLost({ code, message }: { readonly code: number; readonly message: string }): void {
    this.#worlds.reject({ code, message });
    this.#worlds.close(message);
  }

  #accept(stream: Duplex): void {
    let branch: Branch | undefined;
    const channel = new Channel(stream, {
      onContent: (content) => {
        clearTimeout(timer);
        if (branch === undefined) branch = this.#handshake(channel, content);
        else this.#receive(branch, content);
      },
      onEnd: () => {
        clearTimeout(timer);
        this.#removeConnection(channel);
        if (branch !== undefined) this.#onBranchLost(branch, branch.isAgent ? "its agent exited" : "");
      },
    });
    const timer = setTimeout(
      () => this.#reject(channel, `timed out after ${HANDSHAKE_TIMEOUT_MS / 1000} s waiting for the hello frame`),
      HANDSHAKE_TIMEOUT_MS,
    ).unref();
    this.#connections.add(channel);
  }

  #removeConnection(channel: Channel): void {
    if (this.#observers.delete(channel) || !this.#connections.delete(channel)) return;
    if (this.#connections.size === 0 && !this.#isClosed) this.#options.onIdle?.();
  }

  /** Handles the first frame of a connection. Returns undefined if it was refused or redirected to its parent. */
  #handshake(channel: Channel, content: Buffer): Branch | undefined {
    const hello = peekHello(content);
    if (hello === undefined) throw new ProtocolError("expected a hello frame first, received a different frame");
    if (!isSameSecret(hello.secret, this.#options.secret ?? ""))
      return this.#reject(
        channel,
        `shared secret mismatch with the agent on ${this.#host}; pass the same MOSAIC_TOKEN_FILE to all processes of the job`,
      );
    if (hello.version !== PROTOCOL_VERSION) {
      const message = (peer: string): string =>
        `control-plane protocol version mismatch: ${peer} uses version ${hello.version}, the agent on ${this.#host} uses version ` +
        `${PROTOCOL_VERSION}; use the same version of Mosaic for the launcher and on all hosts`;
      this.#worlds.reject({ code: FAILURE_CODES.mismatch, message: message("a rank or agent") });
      return this.#reject(channel, message("this process"));
    }
    const { role, agent, host, address } = decode(content) as FrameOf<"hello">;
    channel.markAuthenticated();
    const [isAgent, isObserver] = [role === ROLES.agent, role === ROLES.observer];
    const branch: Branch = { channel, isAgent, isObserver, worlds: new Map(), maxWorldNumber: -1 };
    if (isObserver) {
      // Observers are not counted as connections, so that the agent exits with its last rank even while it is observed.
      this.#connections.delete(channel);
      this.#observers.add(channel);
      this.#worlds.addObserver(branch);
      return branch;
    }
    this.#hasConnections = true;
    if (!isAgent) return branch;
    const attachResult = this.#tree.attach(channel, agent, address);
    if (attachResult === "duplicate")
      return this.#reject(
        channel,
        `duplicate agent number ${agent} on ${host}; use a unique agent number for each host`,
      );
    if (attachResult !== "child") return undefined;
    this.#children.set(branch, agent);
    channel.send({ kind: "accept", heartbeatMs: this.#heartbeatMs, heartbeatTimeoutMs: this.#heartbeatTimeoutMs });
    return branch;
  }

  #reject(channel: Channel, message: string): undefined {
    channel.send({ kind: "refused", world: 0, code: FAILURE_CODES.mismatch, message });
    channel.finish();
  }

  #receive(branch: Branch, content: Buffer): void {
    const frame = decode(content);
    if (frame.kind === "heartbeat" && branch.isAgent) return;
    if (!("world" in frame))
      throw new ProtocolError(`expected a world frame after the hello frame, received ${frame.kind}`);
    this.#worlds.receive(branch, frame);
  }

  #onBranchLost(branch: Branch, reason: string): void {
    const agent = this.#children.get(branch);
    if (agent !== undefined) this.#tree.remove(agent);
    this.#children.delete(branch);
    this.#worlds.removeBranch(branch, reason);
  }

  #tick(): void {
    const now = performance.now();
    // After a pause of this process, the frames that peers sent meanwhile have not been read yet.
    const wasPaused = now - this.#lastTickAt > 2 * this.#heartbeatMs;
    this.#lastTickAt = now;
    this.#parent?.tick(now, wasPaused, this.#heartbeatTimeoutMs);
    for (const branch of [...this.#children.keys()]) {
      const { channel } = branch;
      if (wasPaused) channel.lastReceivedAt = now;
      channel.send({ kind: "heartbeat" });
      if (now - channel.lastReceivedAt < this.#heartbeatTimeoutMs) continue;
      channel.destroy();
      this.#onBranchLost(branch, `no heartbeat for ${this.#heartbeatTimeoutMs / 1000} s`);
      this.#removeConnection(channel);
    }
  }
}
