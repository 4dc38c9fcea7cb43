import { randomBytes } from "node:crypto";
import { constants } from "node:os";
import type { LaunchEvent } from "../job.ts";
import type { Host, HostsSettings } from "../options/hosts.ts";
import type { AgentHeader } from "./agent-stdin.ts";
import { Channel } from "./channel.ts";
import { type AgentCommand, agentCommand, describeStartFailure } from "./ssh.ts";

/** Exit code if a host was lost or is not reachable. Schedulers may retry the job. */
const EX_TEMPFAIL = 75;
/** Exit code of ssh itself, if the connection fails or the command cannot be started. */
const SSH_FAILURE_EXIT_CODE = 255;
/**
 * Time for the other agents to exit by themselves after node 0 or after a failure. Then their connections are closed.
 */
const EXIT_TIMEOUT_MS = 5000;
/** Time within which node 0 detects a lost node, and ends the job unless it is restarted. */
const LOSS_DETECTION_TIMEOUT_MS = 5000;
/** Time in which other agents may print their messages about a mismatch, before all are ended. */
const MISMATCH_REPORT_WINDOW_MS = 1000;
/** Delay before the agent of a lost host is restarted, and the interval of retries while the host is not reachable. */
const RESTART_DELAY_MS = 1000;
const RETRY_DELAY_MS = 2000;
const SECRET_BYTES = 32;

/** A job whose agents are started by this launcher, on this host or on other hosts. */
export interface HostsPlan extends Pick<HostsSettings, "hosts" | "minHosts" | "ssh"> {
  readonly cwd: string;
  /** For each host, the agent's options, the entry and its arguments. */
  readonly args: readonly (readonly string[])[];
  readonly env: Readonly<Record<string, string>>;
  /** The user's secret. Default: a random one for this job. */
  readonly secret?: string | undefined;
  readonly maxRestarts: number;
  readonly graceMs: number;
}

/** Console for the output and events of a job on hosts. */
export interface HostsConsole {
  /** Prints an event as on one node. `node` is the host's name. */
  readonly printEvent: (event: LaunchEvent) => void;
  /** Prints a line of ssh or an agent that is not an event. */
  readonly printLine: (host: string, line: string) => void;
  /** Prints a message of this launcher. */
  readonly printMessage: (text: string) => void;
}

const hostCommand = (plan: HostsPlan, rank: number): AgentCommand => ({
  ...{ ssh: plan.ssh, cwd: plan.cwd },
  args: plan.args[rank] as readonly string[],
});

/** Returns the command that would be started for each host. */
export function dryRunHosts(
  plan: HostsPlan,
): readonly { readonly host: string; readonly command: readonly string[] }[] {
  return plan.hosts.map((host, rank) => {
    const { program, args } = agentCommand(host, hostCommand(plan, rank));
    return { host: host.name, command: [program, ...args] };
  });
}

/** Starts the agents, shows their events, and ends them together. */
export class HostsJob {
  readonly #plan: HostsPlan;
  readonly #console: HostsConsole;
  readonly #header: AgentHeader;
  readonly #channels: Channel[] = [];
  /** For each host, the number of times that its agent was lost. */
  readonly #lossCounts: number[];
  readonly #unreachableHosts = new Set<number>();
  readonly #timers = new Set<NodeJS.Timeout>();
  readonly #exitCode: Promise<number>;
  #finish: (exitCode: number) => void = () => {};
  /** Exit code of the first failure that is not a result of the job itself. */
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

  /** Starts the agents. Resolves to the exit code when all have exited. */
  run(): Promise<number> {
    for (const rank of this.#plan.hosts.keys()) this.#startAgent(rank);
    return this.#exitCode;
  }

  /** Forwards a signal to all agents. If it ends the job, agents that have not started yet are killed. */
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

  /**
   * Returns whether an event is shown. Node 0 reports for the job. Its repetition on other nodes and consequences of an
   * end by this launcher are hidden.
   */
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
        // The loss of node 0 is shown once, as reported by the first other node.
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

  /** Handles the exit without a result of an agent other than that of node 0. */
  #onMemberLost(rank: number, channel: Channel): void {
    const { code } = channel.exit;
    if (!channel.isReady) return this.#onUnreachable(rank, channel);
    if (code !== null && code !== EX_TEMPFAIL && code < 128) return this.#reportAndStop(rank, channel);
    const lossCount = (this.#lossCounts[rank] ?? 0) + 1;
    this.#lossCounts[rank] = lossCount;
    // Node 0 reports the lost node, and ends the job unless restarts are left. With restarts left, the host joins
    // again.
    if (lossCount > this.#plan.maxRestarts)
      return this.#schedule(LOSS_DETECTION_TIMEOUT_MS, () => this.#isEnding || this.#reportAndStop(rank, channel));
    this.#console.printMessage(`${this.#failureText(rank, channel)}; restarting the agent`);
    this.#schedule(RESTART_DELAY_MS, () => this.#isEnding || this.#startAgent(rank));
  }

  /** Handles an agent that could not be started. */
  #onUnreachable(rank: number, channel: Channel): void {
    const { minHosts, hosts } = this.#plan;
    // A lost host may become reachable again. Node 0 ends the job if that takes longer than --rdzv-timeout.
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

  /** Reports why an agent has failed, and ends all other agents. */
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
    return `host ${host.name}: its agent exited without a result (${signal === null ? `the exit code of the agent is ${code}` : `killed by ${signal}`})`;
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
