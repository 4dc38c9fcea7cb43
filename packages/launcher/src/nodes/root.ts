import { rmSync, writeFileSync } from "node:fs";
import { constants } from "node:os";
import { join } from "node:path";
import type { TLSSocket } from "node:tls";
import { Agent } from "../agent/agent.ts";
import { FAILURE_CODES, type Frame, type FrameOf } from "../agent/frames.ts";
import { formatAddress } from "../agent/network.ts";
import { sharedTlsNetwork, TLS_PROTOCOLS, TlsServer } from "../agent/tls.ts";
import { ProtocolError } from "../agent/wire.ts";
import { type AttemptDecision, RestartPolicy, type StopRequest } from "../restart-policy.ts";
import {
  type Assignment,
  type Coordinator,
  type FindHint,
  makePrivateDir,
  type NodeControl,
  portError,
} from "../coordinator.ts";
import { RendezvousError, UsageError } from "../errors.ts";
import type { Failure, LostNode } from "../job.ts";
import type { LaunchPlan, NodesPlan } from "../launch-plan.ts";
import { classifyExit, diagnose, type RankRecord } from "../report/diagnose.ts";
import { jobSecret } from "../secret.ts";
import { StoreServer } from "../store/server.ts";
import { bindAddress } from "./address.ts";
import { OUTCOMES, Peer, signalName } from "./peer.ts";
import { decodeReport, encodeDecision, type RankReport } from "./records.ts";
import { findMismatch, waitingMessage, nodeName, type Registration, createRegistration } from "./registration.ts";

/** Interval of reports about missing nodes. */
const WAITING_NOTICE_INTERVAL_MS = 5000;
const CHECK_INTERVAL_MS = 100;
/** Timeout for the registration of a launcher that has connected. */
const REGISTER_TIMEOUT_MS = 5000;
/** Maximum number of different refusals that are reported. */
const MAX_REFUSALS = 64;
/** Maximum time at the end of a job for sending the last frames to the other nodes. */
const FLUSH_TIMEOUT_MS = 1000;

/** State of another node, at node 0. */
interface MemberNode {
  readonly peer: Peer;
  readonly registration: Registration;
  readonly nodeRank: number;
  /** Milliseconds by which the node's clock is behind the clock of node 0. */
  offsetMs: number;
  /** Whether the node takes part in the running attempt. */
  isParticipant: boolean;
  hasEnded: boolean;
  readonly reports: RankReport[];
}

interface RootComponents {
  readonly plan: LaunchPlan;
  readonly nodes: NodesPlan;
  readonly control: NodeControl;
  readonly privateDir: string;
  readonly server: TlsServer;
  readonly secret: string;
}

/** The coordinator of a job on several nodes, in the launcher of node 0. */
export class RootCoordinator implements Coordinator {
  readonly privateDir: string;
  readonly #plan: LaunchPlan;
  readonly #nodes: NodesPlan;
  readonly #control: NodeControl;
  readonly #secret: string;
  readonly #ownRegistration: Registration;
  readonly #policy: RestartPolicy;
  readonly #server: TlsServer;
  readonly #store: StoreServer;
  readonly #members = new Map<number, MemberNode>();
  readonly #connections = new Set<TLSSocket>();
  #agent: Agent | undefined;
  #attempt = -1;
  #worldSize = 0;
  #hasRun = false;
  #state: "gathering" | "running" | "between" = "between";
  /** Messages of refusals that were reported. Each is reported once. */
  readonly #refusals = new Set<string>();
  #startTime = 0;
  #joinedAt = 0;
  #stopRequest: StopRequest | undefined;
  #error: Error | undefined;
  #lostNode: LostNode | undefined;
  #notifyWaiter: () => void = () => {};
  #firstFailureAt = Number.POSITIVE_INFINITY;
  #lostAt = Number.POSITIVE_INFINITY;
  #stopRequestedAt = Number.POSITIVE_INFINITY;

  private constructor({ plan, nodes, control, privateDir, server, secret }: RootComponents) {
    this.privateDir = privateDir;
    this.#plan = plan;
    this.#nodes = nodes;
    this.#control = control;
    this.#secret = secret;
    this.#ownRegistration = createRegistration(plan, nodes);
    this.#policy = new RestartPolicy(plan);
    this.#server = server;
    this.#store = StoreServer.share({ runId: plan.runId, server, token: secret });
    server.serve(TLS_PROTOCOLS.node, (socket) => this.#accept(socket));
    writeFileSync(this.#tokenFile, `${secret}\n`, { mode: 0o600 });
  }

  /**
   * Binds the endpoint. Rejects with RendezvousError if its port is in use, UsageError if its address is not of this
   * host.
   */
  static async open(plan: LaunchPlan, nodes: NodesPlan, control: NodeControl): Promise<RootCoordinator> {
    const secret = jobSecret();
    const { endpoint } = nodes;
    const host = await bindAddress(nodes, {
      isEnding: control.isEnding,
      onWaiting: (message) => control.emit({ type: "rendezvous", message }),
    });
    const reportedRefusals = new Set<string>();
    const onRefused = (address: string, reason: string): void => {
      const message = `a connection from ${address} was refused: ${reason}`;
      if (reportedRefusals.has(message) || reportedRefusals.size >= MAX_REFUSALS) return;
      reportedRefusals.add(message);
      control.emit({ type: "rendezvous", message });
    };
    let server: TlsServer;
    try {
      server = await TlsServer.listen({ secret, host, port: endpoint.port, onRefused });
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === "EADDRNOTAVAIL")
        throw new UsageError(
          `--rdzv-endpoint ${formatAddress(endpoint.host, endpoint.port)}: ${host} is not an address of this host; run node 0 on the ` +
            "endpoint's host, or pass --bind-any if node 0 is behind NAT",
        );
      throw portError(error, endpoint.port, "--rdzv-endpoint") ?? error;
    }
    return new RootCoordinator({ plan, nodes, control, privateDir: makePrivateDir(), server, secret });
  }

  get #tokenFile(): string {
    return join(this.privateDir, "token");
  }

  async beginAttempt(): Promise<Assignment | undefined> {
    this.#attempt++;
    for (;;) {
      await this.#waitForNodes();
      if (this.#stopRequest !== undefined) return undefined;
      const assignedMembers = [...this.#members.values()].toSorted((a, b) => a.nodeRank - b.nodeRank);
      await this.#agent?.close();
      this.#agent = await Agent.listen({
        ...{ path: join(this.privateDir, "agent"), secret: this.#secret, host: this.#plan.node, children: true },
        network: sharedTlsNetwork(this.#server, this.#secret),
      });
      // If nodes were lost or have joined meanwhile, the rendezvous is repeated.
      if (
        assignedMembers.length === this.#members.size &&
        assignedMembers.every(({ nodeRank: rank, peer }) => this.#members.get(rank)?.peer === peer)
      )
        return this.#assign(assignedMembers);
    }
  }

  reportFailing(rank: number): void {
    this.#onFailing(rank, this.#ownRegistration);
  }

  reportSucceeded(rank: number): void {
    const job = { runId: this.#plan.runId, attempt: this.#attempt, size: this.#worldSize };
    this.#agent?.recordExit(job, rank);
  }

  async endAttempt(records: readonly RankRecord[], findHint: FindHint): Promise<AttemptDecision> {
    await this.#waitUntil(() =>
      [...this.#members.values()].every(({ isParticipant, hasEnded }) => !isParticipant || hasEnded),
    );
    this.#state = "between";
    const failure = this.#diagnose(records.map((record) => ({ record, hint: findHint(record) })));
    const isEndedByNodeLoss =
      this.#lostNode !== undefined && !(failure !== undefined && this.#firstFailureAt < this.#lostAt);
    // A node may be lost while a job that was requested to stop ends, for example because its host shuts down.
    const isLossCause = isEndedByNodeLoss && this.#lostAt < this.#stopRequestedAt;
    const decision = this.#policy.decide({
      ...{ attempt: this.#attempt, uptimeMs: Date.now() - this.#startTime, stop: this.#stopRequest },
      failure: isEndedByNodeLoss ? undefined : failure,
      lost: isLossCause ? this.#lostNode : undefined,
    });
    this.#broadcast({ kind: "outcome", attempt: this.#attempt, end: encodeDecision(decision) });
    for (const member of this.#members.values()) member.isParticipant = false;
    return decision;
  }

  stop(request: StopRequest): void {
    if (this.#stopRequest !== undefined) return;
    this.#setStopRequest(request);
    this.#broadcastStop(request.signal, request);
    this.#notifyWaiter();
  }

  kill(reason: string): void {
    this.#broadcastStop("SIGKILL", { reason, outcome: "cancelled" });
  }

  async close(): Promise<void> {
    for (const { peer } of this.#members.values()) peer.finish();
    const deadline = Date.now() + FLUSH_TIMEOUT_MS;
    await this.#waitUntil(() => this.#connections.size === 0 || Date.now() > deadline);
    for (const socket of this.#connections) socket.destroy();
    await this.#agent?.close();
    await this.#store.close();
    this.#server.close();
    rmSync(this.privateDir, { recursive: true, force: true });
  }

  /**
   * Resolves when all nodes have joined, when MIN nodes have joined and the last call has passed, or when the job is to
   * end.
   */
  async #waitForNodes(): Promise<void> {
    const { min, max, timeoutMs, lastCallMs } = this.#nodes;
    this.#state = "gathering";
    const startedAt = Date.now();
    this.#joinedAt = startedAt;
    let lastReportedAt = startedAt - WAITING_NOTICE_INTERVAL_MS + 1000;
    await this.#waitUntil(() => {
      if (this.#error !== undefined || this.#stopRequest !== undefined) return true;
      const now = Date.now();
      const registeredCount = this.#members.size + 1;
      if (registeredCount === max || (registeredCount >= min && now - this.#joinedAt >= lastCallMs)) return true;
      const message = waitingMessage(new Set([0, ...this.#members.keys()]), max);
      if (now - startedAt >= timeoutMs) {
        const text = `rendezvous timed out after ${timeoutMs / 1000} s: ${message}; check the output of the other nodes, and their --rdzv-endpoint`;
        this.#fail(new RendezvousError(text), FAILURE_CODES.timeout);
      } else if (now - lastReportedAt >= WAITING_NOTICE_INTERVAL_MS) {
        lastReportedAt = now;
        this.#control.emit({ type: "rendezvous", message });
        this.#broadcast({ kind: "rendezvousStatus", message });
      }
      return this.#error !== undefined;
    });
    if (this.#error !== undefined) throw this.#error;
  }

  /** Assigns the ranks in the order of the nodes, and starts the attempt on all of them. */
  #assign(members: readonly MemberNode[]): Assignment {
    const { runId, nproc } = this.#plan;
    const worldSize = members.reduce((sum, { registration }) => sum + registration.nproc, nproc);
    const assignmentFields = { attempt: this.#attempt, worldSize, groupWorldSize: members.length + 1 };
    this.#state = "running";
    this.#worldSize = worldSize;
    this.#hasRun = true;
    this.#startTime = Date.now();
    this.#lostNode = undefined;
    this.#lostAt = this.#firstFailureAt = Number.POSITIVE_INFINITY;
    this.#store.beginAttempt(this.#attempt);
    let firstRank = nproc;
    for (const [index, member] of members.entries()) {
      member.isParticipant = true;
      member.hasEnded = false;
      member.reports.length = 0;
      member.peer.send({ kind: "assign", run: runId, ...assignmentFields, firstRank, groupRank: index + 1 });
      firstRank += member.registration.nproc;
    }
    const host = this.#ownAddress();
    const rootFields = { firstRank: 0, groupRank: 0, nodeAddress: host, host, port: this.#server.port };
    const store = `tls://${formatAddress(host, this.#server.port)}`;
    return {
      runId,
      ...assignmentFields,
      ...rootFields,
      store,
      tokenFile: this.#tokenFile,
      agent: (this.#agent as Agent).path,
    };
  }

  /** Returns the address of this node; with --bind-any, the address at which another node has reached it. */
  #ownAddress(): string {
    const { host } = this.#server;
    if (host !== "0.0.0.0" && host !== "::") return host;
    const [socket] = this.#connections;
    return socket?.localAddress?.replace(/^::ffff:/, "") ?? host;
  }

  #diagnose(localReports: readonly RankReport[]): Failure | undefined {
    const allReports = [...localReports.map((report) => ({ ...report, from: this.#ownRegistration }))];
    for (const { reports, registration } of this.#members.values())
      allReports.push(...reports.map((report) => ({ ...report, from: registration })));
    const reportByRank = new Map(allReports.map((report) => [report.record.rank, report]));
    const records = allReports.map(({ record }) => record);
    const attemptFields = { number: this.#attempt, node: this.#plan.node };
    const failure = diagnose(records, attemptFields, ({ rank }) => reportByRank.get(rank)?.hint);
    const root = reportByRank.get(failure?.rank ?? -1);
    if (failure === undefined || root === undefined) return undefined;
    // A rank that lost a peer because a node was lost is not the cause.
    if (this.#lostNode !== undefined && classifyExit(root.record) === "peer-lost") return undefined;
    return { ...failure, node: root.from.host, nodeRank: root.from.nodeRank };
  }

  #accept(socket: TLSSocket): void {
    this.#connections.add(socket);
    socket.on("close", () => {
      this.#connections.delete(socket);
      this.#notifyWaiter();
    });
    let member: MemberNode | undefined;
    const peer = new Peer(socket, {
      onFrame: (frame) => {
        if (member !== undefined) return this.#receive(member, frame);
        if (frame.kind !== "register")
          throw new ProtocolError(`expected a register message first, received ${frame.kind}`);
        clearTimeout(deadline);
        peer.markAuthenticated();
        member = this.#register(peer, frame, socket.remoteAddress ?? "unknown address");
      },
      onLost: (reason) => {
        clearTimeout(deadline);
        if (member !== undefined) this.#onLost(member, reason);
      },
    });
    const deadline = setTimeout(() => peer.destroy(), REGISTER_TIMEOUT_MS);
  }

  /** Registers a node. Returns undefined if it was rejected. */
  #register(peer: Peer, registration: Registration, address: string): MemberNode | undefined {
    const reject = (code: number, message: string): undefined => {
      peer.send({ kind: "refused", world: 0, code, message });
      peer.finish();
      if (this.#refusals.has(message) || this.#refusals.size >= MAX_REFUSALS) return;
      this.#refusals.add(message);
      this.#control.emit({ type: "rendezvous", message: `rejected a launcher at ${address}: ${message}` });
    };
    const { nodeRank } = registration;
    // A mismatch fails the first rendezvous, because it can no longer succeed. A job that has run is not affected.
    const isFirstRendezvous = !this.#hasRun;
    const mismatch = findMismatch(this.#ownRegistration, registration);
    const existingRegistration = nodeRank === 0 ? this.#ownRegistration : this.#members.get(nodeRank)?.registration;
    const duplicate =
      existingRegistration === undefined
        ? undefined
        : `duplicate --node-rank ${nodeRank}: on ${existingRegistration.host} and on ${registration.host} (${address}); each launcher needs a unique --node-rank`;
    const message = mismatch?.message ?? duplicate;
    if (message !== undefined && isFirstRendezvous && mismatch?.isOtherJob !== true) {
      reject(FAILURE_CODES.mismatch, message);
      this.#fail(new UsageError(message), FAILURE_CODES.mismatch);
      return undefined;
    }
    if (mismatch !== undefined) return reject(FAILURE_CODES.mismatch, mismatch.message);
    if (duplicate !== undefined) {
      const refusalText = `the job is already running attempt ${this.#attempt} with ${this.#members.size + 1} nodes: ${duplicate}`;
      return reject(FAILURE_CODES.peerLost, refusalText);
    }
    this.#joinedAt = Date.now();
    const member = {
      peer,
      registration,
      nodeRank,
      offsetMs: Number.POSITIVE_INFINITY,
      isParticipant: false,
      hasEnded: false,
      reports: [],
    };
    this.#members.set(nodeRank, member);
    this.#notifyWaiter();
    return member;
  }

  #receive(member: MemberNode, frame: Frame): void {
    switch (frame.kind) {
      case "clock":
        // The frame with the lowest latency gives the best bound of the clock offset.
        member.offsetMs = Math.min(member.offsetMs, Date.now() - Number(frame.time));
        return;
      case "failing":
        if (frame.attempt === this.#attempt) this.#onFailing(frame.rank, member.registration);
        return;
      case "report":
        if (frame.attempt === this.#attempt && member.isParticipant) this.#onReport(member, frame);
        return;
      case "ended":
        if (frame.attempt === this.#attempt) member.hasEnded = true;
        return this.#notifyWaiter();
      case "stop":
        return this.#onStop(member, frame);
    }
    throw new ProtocolError(`expected a message type sent by nodes to node 0, received ${frame.kind}`);
  }

  #onReport({ reports, offsetMs }: MemberNode, { record: encodedReport }: FrameOf<"report">): void {
    const report = decodeReport(encodedReport, finiteOrZero(offsetMs));
    reports.push(report);
    // If no rank of that node has joined, its agent has no world to reject, so the root must reject it.
    if (classifyExit(report.record) === "ok") this.reportSucceeded(report.record.rank);
  }

  #onFailing(rank: number, registration: Registration): void {
    if (this.#state !== "running") return;
    this.#firstFailureAt = Math.min(this.#firstFailureAt, performance.now());
    this.#endRanks(`rank ${rank} of ${nodeName(registration)} failed`, registration.nodeRank);
  }

  /** Ends the ranks of all nodes except one. */
  #endRanks(reason: string, excludedNode: number): void {
    this.#broadcast(
      { kind: "stop", signal: constants.signals.SIGTERM, outcome: OUTCOMES.failed, reason },
      excludedNode,
    );
    if (excludedNode !== 0) this.#control.stopRanks(reason);
  }

  #onStop(member: MemberNode, { signal, outcome, reason }: FrameOf<"stop">): void {
    const name = signalName(signal);
    const forwardedStop = { reason: `${reason} on ${nodeName(member.registration)}`, signal: name } as const;
    if (name === "SIGKILL") {
      this.#broadcastStop(name, { ...forwardedStop, outcome: "cancelled" }, member.nodeRank);
      return this.#control.kill(forwardedStop.reason);
    }
    if (this.#stopRequest !== undefined) return;
    const request: StopRequest = {
      ...forwardedStop,
      outcome: outcome === OUTCOMES["timed-out"] ? "timed-out" : "cancelled",
    };
    this.#setStopRequest(request);
    this.#broadcastStop(name, request, member.nodeRank);
    this.#control.end(request);
    this.#notifyWaiter();
  }

  #setStopRequest(request: StopRequest): void {
    this.#stopRequest = request;
    this.#stopRequestedAt = performance.now();
  }

  #broadcastStop(signal: NodeJS.Signals, request: Pick<StopRequest, "reason" | "outcome">, excludedNode = 0): void {
    const { reason } = request;
    this.#broadcast(
      { kind: "stop", signal: constants.signals[signal], outcome: OUTCOMES[request.outcome], reason },
      excludedNode,
    );
  }

  #onLost(member: MemberNode, reason: string): void {
    const { nodeRank, registration } = member;
    if (this.#members.get(nodeRank) !== member) return;
    this.#members.delete(nodeRank);
    this.#notifyWaiter();
    if (this.#state !== "running" || !member.isParticipant || member.hasEnded) return;
    if (this.#lostNode === undefined) {
      this.#lostAt = performance.now();
      const afterMs = Date.now() - this.#startTime;
      this.#lostNode = { attempt: this.#attempt, nodeRank, node: registration.host, reason, afterMs };
    }
    const message = `${nodeName(registration)} was lost: ${reason}`;
    if (this.#stopRequest !== undefined) this.#control.emit({ type: "rendezvous", message });
    this.#endRanks(message, nodeRank);
  }

  /** Fails the rendezvous. All registered nodes are refused with the reason. */
  #fail(error: Error, code: number): void {
    this.#error ??= error;
    for (const { peer } of this.#members.values()) {
      peer.send({ kind: "refused", world: 0, code, message: error.message });
      peer.finish();
    }
    this.#members.clear();
    this.#notifyWaiter();
  }

  #broadcast(frame: Frame, excludedNode = 0): void {
    for (const { peer, nodeRank } of this.#members.values()) if (nodeRank !== excludedNode) peer.send(frame);
  }

  /** Waits for a condition. It is checked after each event, and periodically because it may depend on deadlines. */
  async #waitUntil(condition: () => boolean): Promise<void> {
    while (!condition())
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, CHECK_INTERVAL_MS);
        this.#notifyWaiter = () => {
          clearTimeout(timer);
          resolve();
        };
      });
  }
}

const finiteOrZero = (value: number): number => (Number.isFinite(value) ? value : 0);
