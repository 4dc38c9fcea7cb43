import { rmSync, writeFileSync } from "node:fs";
import { constants } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import type { TLSSocket } from "node:tls";
import { Agent, DEFAULT_FAN_OUT } from "../agent/agent.ts";
import type { JobAttempt } from "../agent/worlds.ts";
import { FAILURE_CODES, type Frame, type FrameOf } from "../agent/frames.ts";
import { formatAddress, HandshakeError } from "../agent/network.ts";
import { connectTls, tlsNetwork, TLS_PROTOCOLS } from "../agent/tls.ts";
import { ProtocolError } from "../agent/wire.ts";
import type { AttemptDecision, StopRequest } from "../restart-policy.ts";
import { type Assignment, type Coordinator, type FindHint, makePrivateDir, type NodeControl } from "../coordinator.ts";
import { RendezvousError, UsageError } from "../errors.ts";
import type { LostNode } from "../job.ts";
import type { LaunchPlan, NodesPlan } from "../launch-plan.ts";
import type { RankRecord } from "../report/diagnose.ts";
import { jobSecret } from "../secret.ts";
import { OUTCOMES, Peer, signalName } from "./peer.ts";
import { decodeDecision, encodeReport } from "./records.ts";
import { createRegistration } from "./registration.ts";

const RETRY_DELAY_MS = 200;
const REPORT_INTERVAL_MS = 5000;
const FLUSH_TIMEOUT_MS = 1000;

interface Deferred<T> {
  readonly promise: Promise<T>;
  readonly resolve: (value: T) => void;
  readonly reject: (error: Error) => void;
}

function createDeferred<T>(): Deferred<T> {
  let settleFunctions: Omit<Deferred<T>, "promise"> | undefined;
  const promise = new Promise<T>((resolve, reject) => (settleFunctions = { resolve, reject }));
  // Avoids an unhandled rejection if nothing waits for the promise yet.
  void promise.catch(() => {});
  return { promise, ...(settleFunctions as Omit<Deferred<T>, "promise">) };
}

/** The coordinator of a node other than 0 in a job on several nodes: the connection to node 0. */
export class MemberCoordinator implements Coordinator {
  readonly privateDir: string = makePrivateDir();
  readonly #plan: LaunchPlan;
  readonly #nodes: NodesPlan;
  readonly #control: NodeControl;
  readonly #secret: string;
  readonly #endpoint: string;
  readonly #deadline: number;
  #peer: Peer | undefined;
  #socket: TLSSocket | undefined;
  #agent: Agent | undefined;
  #job: JobAttempt | undefined;
  #assignment = createDeferred<FrameOf<"assign"> | undefined>();
  #outcome = createDeferred<AttemptDecision>();
  #attempt = -1;
  #startTime = 0;
  #isRunning = false;
  /** Whether an assignment was received and its ranks have not been started yet. */
  #isStarting = false;
  readonly #earlyStopFrames: FrameOf<"stop">[] = [];
  #lostNode: LostNode | undefined;
  #stopRequest: StopRequest | undefined;
  #isClosed = false;

  /** Throws UsageError if there is no secret. */
  constructor(plan: LaunchPlan, nodes: NodesPlan, control: NodeControl) {
    this.#plan = plan;
    this.#nodes = nodes;
    this.#control = control;
    this.#endpoint = formatAddress(nodes.endpoint.host, nodes.endpoint.port);
    this.#deadline = Date.now() + nodes.timeoutMs;
    try {
      this.#secret = jobSecret();
      writeFileSync(this.#tokenFile, `${this.#secret}\n`, { mode: 0o600 });
    } catch (error) {
      rmSync(this.privateDir, { recursive: true, force: true });
      throw error;
    }
    void this.#connect();
  }

  get #tokenFile(): string {
    return join(this.privateDir, "token");
  }

  async beginAttempt(): Promise<Assignment | undefined> {
    const assign = await this.#assignment.promise;
    if (assign === undefined || this.#socket === undefined) return undefined;
    this.#assignment = createDeferred();
    const { run: runId, attempt, worldSize, firstRank, groupRank, groupWorldSize } = assign;
    this.#job = { runId, attempt, size: worldSize };
    const { remoteAddress = "", remotePort = 0, localAddress = "" } = this.#socket;
    await this.#agent?.close();
    const root = formatAddress(remoteAddress, remotePort);
    this.#agent = await Agent.listen({
      ...{ path: join(this.privateDir, "agent"), secret: this.#secret, host: this.#plan.node, index: groupRank, root },
      children: groupRank * DEFAULT_FAN_OUT + 1 < groupWorldSize,
      network: tlsNetwork({ secret: this.#secret, host: localAddress }),
    });
    if (this.#lostNode !== undefined && this.#stopRequest === undefined)
      throw new RendezvousError(describeLostNode(this.#lostNode));
    this.#isStarting = false;
    // Handled after the ranks have been started.
    for (const stopFrame of this.#earlyStopFrames.splice(0)) setImmediate(() => this.#onStop(stopFrame));
    const assignmentFields = {
      firstRank,
      groupRank,
      groupWorldSize,
      nodeAddress: localAddress,
      host: remoteAddress,
      port: remotePort,
    };
    const jobFields = { runId, attempt, worldSize, store: `tls://${root}` };
    return { ...jobFields, ...assignmentFields, tokenFile: this.#tokenFile, agent: this.#agent.path };
  }

  reportFailing(rank: number): void {
    this.#peer?.send({ kind: "failing", attempt: this.#attempt, rank });
  }

  reportSucceeded(rank: number): void {
    if (this.#job !== undefined) this.#agent?.recordExit(this.#job, rank);
  }

  async endAttempt(records: readonly RankRecord[], findHint: FindHint): Promise<AttemptDecision> {
    const attempt = this.#attempt;
    for (const record of records)
      this.#peer?.send({
        kind: "report",
        attempt,
        rank: record.rank,
        record: encodeReport({ record, hint: findHint(record) }),
      });
    this.#peer?.send({ kind: "ended", attempt });
    const decision = await this.#outcome.promise;
    this.#isRunning = false;
    return decision;
  }

  stop(request: StopRequest): void {
    if (this.#stopRequest !== undefined) return;
    this.#stopRequest = request;
    const { signal, outcome, reason } = request;
    this.#peer?.send({ kind: "stop", signal: constants.signals[signal], outcome: OUTCOMES[outcome], reason });
    this.#assignment.resolve(undefined);
  }

  kill(reason: string): void {
    this.#peer?.send({ kind: "stop", signal: constants.signals.SIGKILL, outcome: OUTCOMES.cancelled, reason });
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#peer?.finish();
    await this.#waitForFlush();
    await this.#agent?.close();
    rmSync(this.privateDir, { recursive: true, force: true });
  }

  /** Waits until the last frames have been sent, or the flush timeout has passed. */
  async #waitForFlush(): Promise<void> {
    const socket = this.#socket;
    if (socket === undefined || socket.closed) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, FLUSH_TIMEOUT_MS);
      socket.once("close", () => {
        clearTimeout(timer);
        resolve();
      });
    });
  }

  /** Connects to node 0. Retries until the deadline of the rendezvous. */
  async #connect(): Promise<void> {
    let lastReportedAt = Date.now() - REPORT_INTERVAL_MS + 1000;
    while (!this.#isClosed && this.#stopRequest === undefined) {
      try {
        const socket = await connectTls(this.#endpoint, { secret: this.#secret, protocol: TLS_PROTOCOLS.node });
        return this.#register(socket);
      } catch (error) {
        const { message } = error as Error;
        const now = Date.now();
        if (error instanceof HandshakeError && error.reason === "secret") return this.#fail(new UsageError(message));
        if (now >= this.#deadline) {
          const seconds = this.#nodes.timeoutMs / 1000;
          return this.#fail(
            new RendezvousError(
              `rendezvous timed out after ${seconds} s: no connection to node 0 at ${this.#endpoint}: ${message}`,
            ),
          );
        }
        if (now - lastReportedAt >= REPORT_INTERVAL_MS) {
          lastReportedAt = now;
          this.#control.emit({ type: "rendezvous", message: `waiting for node 0 at ${this.#endpoint}: ${message}` });
        }
        await delay(RETRY_DELAY_MS);
      }
    }
  }

  #register(socket: TLSSocket): void {
    if (this.#isClosed) return void socket.destroy();
    this.#socket = socket;
    const peer = new Peer(socket, {
      onFrame: (frame) => this.#receive(frame),
      onLost: (reason) => this.#onLost(reason),
    });
    this.#peer = peer;
    peer.markAuthenticated();
    peer.send(createRegistration(this.#plan, this.#nodes));
    peer.send({ kind: "clock", time: BigInt(Date.now()) });
  }

  #receive(frame: Frame): void {
    switch (frame.kind) {
      case "clock":
        return;
      case "refused": {
        const ErrorClass = frame.code === FAILURE_CODES.mismatch ? UsageError : RendezvousError;
        return this.#fail(new ErrorClass(frame.message));
      }
      case "rendezvousStatus":
        return this.#control.emit({ type: "rendezvous", message: frame.message });
      case "assign":
        if (this.#attempt < 0) this.#reportJoined(frame);
        this.#attempt = frame.attempt;
        this.#startTime = Date.now();
        this.#isRunning = this.#isStarting = true;
        this.#outcome = createDeferred();
        return this.#assignment.resolve(frame);
      case "outcome":
        if (frame.attempt === this.#attempt) this.#outcome.resolve(decodeDecision(frame.end));
        return;
      case "stop":
        // Recorded at once, because node 0 may be lost before the ranks have been started.
        this.#stopRequest ??= toStopRequest(frame);
        return this.#isStarting ? void this.#earlyStopFrames.push(frame) : this.#onStop(frame);
    }
    throw new ProtocolError(`expected a message type sent by node 0, received ${frame.kind}`);
  }

  #reportJoined({ groupRank, groupWorldSize }: FrameOf<"assign">): void {
    const message = `joined node 0 at ${this.#endpoint} as node ${groupRank} of ${groupWorldSize}`;
    this.#control.emit({ type: "rendezvous", message });
  }

  #onStop(frame: FrameOf<"stop">): void {
    const { signal, reason } = frame;
    if (signalName(signal) === "SIGKILL") return this.#control.kill(reason);
    const request = toStopRequest(frame);
    if (request === undefined) return this.#control.stopRanks(reason);
    this.#control.end(request);
    this.#assignment.resolve(undefined);
  }

  #onLost(reason: string): void {
    if (this.#isClosed) return;
    this.#peer = undefined;
    // Before the first attempt, this node reconnects, because node 0 may have been restarted.
    if (this.#attempt < 0) return void this.#connect();
    const { nodeRank, node } = { nodeRank: 0, node: this.#endpoint };
    this.#lostNode = { attempt: this.#attempt, nodeRank, node, reason, afterMs: Date.now() - this.#startTime };
    const message = describeLostNode(this.#lostNode);
    if (!this.#isRunning) return this.#fail(new RendezvousError(message));
    // The job was requested to stop before the loss, which is therefore not its result.
    if (this.#stopRequest !== undefined) this.#control.emit({ type: "rendezvous", message });
    this.#outcome.resolve(this.#stopRequest === undefined ? { lost: this.#lostNode } : { stop: this.#stopRequest });
    this.#control.stopRanks(message);
  }

  #fail(error: Error): void {
    this.#peer?.destroy();
    this.#isClosed = true;
    this.#assignment.reject(error);
  }
}

/** Returns the request of a frame to end the job. Returns undefined if the frame ends an attempt or kills the ranks. */
function toStopRequest({ signal, outcome, reason }: FrameOf<"stop">): StopRequest | undefined {
  const name = signalName(signal);
  if (name === "SIGKILL" || outcome === OUTCOMES.failed) return undefined;
  return { reason, signal: name, outcome: outcome === OUTCOMES["timed-out"] ? "timed-out" : "cancelled" };
}

const describeLostNode = ({ nodeRank, node, reason }: LostNode): string =>
  `node ${nodeRank} (${node}) was lost: ${reason}`;
