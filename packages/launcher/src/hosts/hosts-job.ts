import { randomBytes } from "node:crypto";
import { constants } from "node:os";
import type { LaunchEvent } from "../job.ts";
import type { Host, HostsSettings } from "../options/hosts.ts";
import type { AgentHeader } from "./agent-stdin.ts";
import { Channel } from "./channel.ts";
import { type AgentCommand, agentCommand, describeStartFailure } from "./ssh.ts";

/** A host was lost, or is not there: schedulers read it as "try again". */
const EX_TEMPFAIL = 75;
/** What ssh itself exits with, when the connection or the command could not be made. */
const SSH_FAILURE_EXIT_CODE = 255;
/** After node 0, or after a failure, the others end by themselves; the connection of one that does not is closed. */
const EXIT_TIMEOUT_MS = 5000;
/** Node 0 finds that a node is lost before this, and ends the job if it is to end. */
const LOSS_DETECTION_TIMEOUT_MS = 5000;
/** Agents that found a disagreement end together, each with its own message. */
const MISMATCH_REPORT_WINDOW_MS = 1000;
/** Before the agent of a lost host is started again; where the host is not there yet, so often. */
const RESTART_DELAY_MS = 1000;
const RETRY_DELAY_MS = 2000;
const SECRET_BYTES = 32;

/** A job whose agents this launcher starts on other hosts, and on this one. */
export interface HostsPlan extends Pick<HostsSettings, "hosts" | "minHosts" | "ssh"> {
  readonly cwd: string;
  /** Of each host: options, entry, arguments. */
  readonly args: readonly (readonly string[])[];
  readonly env: Readonly<Record<string, string>>;
  /** The user's, or one of this job's own. */
  readonly secret?: string | undefined;
  readonly maxRestarts: number;
  readonly graceMs: number;
}

/** Where output and events go. */
export interface HostsConsole {
  /** As on one node: `node` is the host's name. */
  readonly printEvent: (event: LaunchEvent) => void;
  /** A line of ssh or an agent that is no event. */
  readonly printLine: (host: string, line: string) => void;
  /** A message of this launcher's own. */
  readonly printMessage: (text: string) => void;
}

const hostCommand = (plan: HostsPlan, rank: number): AgentCommand => ({
  ...{ ssh: plan.ssh, cwd: plan.cwd },
  args: plan.args[rank] as readonly string[],
});

/** What would be started for each host. */
export function dryRunHosts(
  plan: HostsPlan,
): readonly { readonly host: string; readonly command: readonly string[] }[] {
  return plan.hosts.map((host, rank) => {
    const { program, args } = agentCommand(host, hostCommand(plan, rank));
    return { host: host.name, command: [program, ...args] };
  });
}

/** Starts the agents, shows what they report, and ends them together. */
export class HostsJob {
  readonly #plan: HostsPlan;
  readonly #console: HostsConsole;
  readonly #header: AgentHeader;
  readonly #channels: Channel[] = [];
  /** How often the agent of each host was lost. */
  readonly #lossCounts: number[];
  readonly #unreachableHosts = new Set<number>();
  readonly #timers = new Set<NodeJS.Timeout>();
  readonly #exitCode: Promise<number>;
  #finish: (exitCode: number) => void = () => {};
  /** The first cause that is not a result of the job itself. */
  #failureExitCode: number | undefined;
  #receivedSignal: NodeJS.Signals | undefined;
  #rootExitCode: number | undefined;
  #isLossReported = false;

  constructor(plan: HostsPlan, console: HostsConsole) {
    this.#plan = plan;
    this.#console = console;
    const secret = plan.secret ?? randomBytes(SECRET_BYTES).toString("hex");
    this.#header = { env: plan.env, ...(plan.hosts.length > 1 ? { secret } : {}) };
    this.#lossCounts = plan.hosts.map(() => 0);
    this.#exitCode = new Promise((resolve) => (this.#finish = resolve));
  }

  /** Starts the agents. Resolves to the exit code, when none is left. */
  run(): Promise<number> {
    for (const rank of this.#plan.hosts.keys()) this.#startAgent(rank);
    return this.#exitCode;
  }

  /** Passes a signal on to all agents; those that are not there yet are ended. */
  signal(name: NodeJS.Signals): void {
    const isFirstSignal = this.#receivedSignal === undefined;
    const isTerminating = name !== "SIGUSR1" && name !== "SIGUSR2";
    if (isTerminating) {
      this.#receivedSignal ??= name;
      if (isFirstSignal) this.#schedule(this.#plan.graceMs + EXIT_TIMEOUT_MS, () => this.#killAll());
      else if (name === "SIGINT") this.#schedule(EXIT_TIMEOUT_MS, () => this.#killAll());
    }
    for (const channel of this.#channels) {
      if (channel.isReady) channel.signal(name);
      else if (isTerminating) channel.kill();
    }
    if (isTerminating) this.#finishIfEnded();
  }

  #startAgent(rank: number): void {
    const host = this.#plan.hosts[rank] as Host;
    const events = {
      onEvent: (event: LaunchEvent) => this.#receive(rank, event),
      onText: (line: string) => this.#console.printLine(host.name, line),
      onEnded: (channel: Channel) => this.#onEnded(rank, channel),
    };
    const command = agentCommand(host, hostCommand(this.#plan, rank));
    this.#channels[rank] = new Channel(command, this.#header, { cwd: this.#plan.cwd, events });
  }

  #receive(rank: number, event: LaunchEvent): void {
    const node = (this.#plan.hosts[rank] as Host).name;
    if (!this.#shouldShow(rank, event)) return;
    if (event.type === "rendezvous" && rank > 0) {
      this.#console.printEvent({ ...event, node, message: `host ${node}: ${event.message}` });
    } else if (event.type === "failure") {
      const failedHost = this.#plan.hosts[event.failure.nodeRank ?? 0]?.name ?? event.failure.node;
      this.#console.printEvent({ ...event, node, failure: { ...event.failure, node: failedHost } });
    } else this.#console.printEvent({ ...event, node });
  }

  /** Node 0 reports for the job; what the others report of it is left out, and what an end by this launcher causes. */
  #shouldShow(rank: number, event: LaunchEvent): boolean {
    switch (event.type) {
      case "start":
      case "failure":
      case "restart":
        return rank === 0;
      case "end":
        return rank === 0 && this.#failureExitCode === undefined;
      case "stop":
      case "kill":
        return this.#failureExitCode === undefined;
      case "rendezvous":
        return (
          this.#failureExitCode === undefined &&
          (rank === 0 || !/^(\d+\/\d+ nodes; missing|joined node 0)/.test(event.message))
        );
      case "node-lost": {
        // Of the loss of node 0 the first other one reports.
        if (rank === 0 || (event.lost.nodeRank === 0 && !this.#isLossReported)) {
          this.#isLossReported ||= event.lost.nodeRank === 0;
          return true;
        }
        return false;
      }
      default:
        return true;
    }
  }

  #onEnded(rank: number, channel: Channel): void {
    if (rank === 0) this.#onRootEnded(channel);
    else if (!channel.hasResult && !this.#isEnding) this.#onMemberLost(rank, channel);
    this.#finishIfEnded();
  }

  get #isEnding(): boolean {
    return (
      this.#failureExitCode !== undefined || this.#receivedSignal !== undefined || this.#rootExitCode !== undefined
    );
  }

  #onRootEnded(channel: Channel): void {
    const { code } = channel.exit;
    if (!channel.hasResult && !this.#isEnding) this.#reportAndStop(0, channel);
    this.#rootExitCode = channel.hasResult && code !== null ? code : EX_TEMPFAIL;
    this.#schedule(EXIT_TIMEOUT_MS, () => this.#killAll());
  }

  /** An agent other than node 0's has ended without a result. */
  #onMemberLost(rank: number, channel: Channel): void {
    const { code } = channel.exit;
    if (!channel.isReady) return this.#onUnreachable(rank, channel);
    if (code !== null && code !== EX_TEMPFAIL && code < 128) return this.#reportAndStop(rank, channel);
    const lossCount = (this.#lossCounts[rank] ?? 0) + 1;
    this.#lossCounts[rank] = lossCount;
    // Node 0 reports a node that is lost, and ends the job unless it has restarts left. Then the host joins again.
    if (lossCount > this.#plan.maxRestarts)
      return this.#schedule(LOSS_DETECTION_TIMEOUT_MS, () => this.#isEnding || this.#reportAndStop(rank, channel));
    this.#console.printMessage(`${this.#failureText(rank, channel)}; restarting the agent`);
    this.#schedule(RESTART_DELAY_MS, () => this.#isEnding || this.#startAgent(rank));
  }

  /** A host's agent could not be started. */
  #onUnreachable(rank: number, channel: Channel): void {
    const { minHosts, hosts } = this.#plan;
    // A host that was lost may be on its way back; node 0 ends the job where that takes longer than --rdzv-timeout.
    const isTransient =
      describeStartFailure(hosts[rank] as Host, channel.exit, hostCommand(this.#plan, rank)).exitCode === 75;
    if ((this.#lossCounts[rank] ?? 0) > 0 && isTransient)
      return this.#schedule(RETRY_DELAY_MS, () => this.#isEnding || this.#startAgent(rank));
    if (hosts.length - this.#unreachableHosts.size - 1 < minHosts) return this.#reportAndStop(rank, channel);
    this.#unreachableHosts.add(rank);
    const nnodesOption = `--nnodes ${minHosts}:${hosts.length}`;
    this.#console.printMessage(
      `${this.#failureText(rank, channel)}; the job continues with the other hosts (${nnodesOption})`,
    );
  }

  /** Reports what kept an agent from taking part, and ends the others. */
  #reportAndStop(rank: number, channel: Channel): void {
    const host = this.#plan.hosts[rank] as Host;
    const { code } = channel.exit;
    this.#failureExitCode = channel.isReady
      ? code === null || code === SSH_FAILURE_EXIT_CODE || code >= 128 || code === 0
        ? EX_TEMPFAIL
        : code
      : describeStartFailure(host, channel.exit, hostCommand(this.#plan, rank)).exitCode;
    this.#console.printMessage(`${this.#failureText(rank, channel)}   exit code ${this.#failureExitCode}`);
    const stopOthers = (): void => {
      for (const otherChannel of this.#channels) {
        if (otherChannel.isReady) otherChannel.signal("SIGTERM");
        else otherChannel.kill();
      }
      this.#schedule(this.#plan.graceMs + EXIT_TIMEOUT_MS, () => this.#killAll());
      this.#finishIfEnded();
    };
    if (channel.isReady) this.#schedule(MISMATCH_REPORT_WINDOW_MS, stopOthers);
    else stopOthers();
  }

  #failureText(rank: number, channel: Channel): string {
    const host = this.#plan.hosts[rank] as Host;
    const { code, signal } = channel.exit;
    if (!channel.isReady) return describeStartFailure(host, channel.exit, hostCommand(this.#plan, rank)).message;
    if (code === SSH_FAILURE_EXIT_CODE) return `host ${host.name}: the connection to its agent was lost`;
    return `host ${host.name}: its agent exited without a result (${signal === null ? `exit code ${code}` : `killed by ${signal}`})`;
  }

  #killAll(): void {
    const runningChannels = this.#channels.filter(({ hasEnded }) => !hasEnded);
    if (runningChannels.length === 0) return;
    const runningHosts = this.#plan.hosts.filter((_, rank) =>
      runningChannels.includes(this.#channels[rank] as Channel),
    );
    this.#console.printMessage(
      `closing the connection to ${runningHosts.map(({ name }) => name).join(", ")}; an agent that is still running exits when it detects the disconnect`,
    );
    for (const channel of runningChannels) channel.kill();
  }

  #schedule(ms: number, callback: () => void): void {
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      callback();
      this.#finishIfEnded();
    }, ms);
    this.#timers.add(timer);
  }

  #finishIfEnded(): void {
    if (!this.#isEnding || !this.#channels.every(({ hasEnded }) => hasEnded)) return;
    if (this.#channels.length < this.#plan.hosts.length) return;
    for (const timer of this.#timers) clearTimeout(timer);
    const signalExitCode =
      this.#receivedSignal === undefined ? undefined : 128 + constants.signals[this.#receivedSignal];
    const hasResult = this.#channels[0]?.hasResult === true;
    this.#finish(
      this.#failureExitCode ?? (hasResult ? this.#rootExitCode : (signalExitCode ?? this.#rootExitCode)) ?? EX_TEMPFAIL,
    );
  }
}
