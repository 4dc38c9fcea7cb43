import { type ChildProcess, type ChildProcessByStdio, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { Agent, type AgentOptions } from "@mosaic/launcher/agent";
import { expect, onTestFinished, vi } from "vitest";
import { compile } from "./native.ts";

const program = await compile("control_ranks");

/** An event that the control plane has delivered to a rank, in the format of native/test/control_ranks.cc. */
export interface DeliveredEvent {
  readonly id: string;
  readonly event: string;
  readonly [field: string]: unknown;
}

/** Options for a rank to join. */
export interface JoinOptions {
  readonly path: string;
  readonly rank: number;
  readonly size: number;
  readonly world?: string;
  readonly attempt?: number;
  readonly secret?: string;
  readonly timeoutMs?: number;
}

/** A process with native clients of the control plane, each with a unique id. */
export class RankProcess {
  readonly pid: number;
  readonly #child: ChildProcessByStdio<Writable, Readable, null>;
  readonly #delivered: DeliveredEvent[] = [];
  /** Resolves to the exit code or signal when the process has ended. */
  readonly exit: Promise<{ readonly code: number | null; readonly signal: NodeJS.Signals | null }>;

  constructor() {
    this.#child = spawn(program, { stdio: ["pipe", "pipe", "inherit"] });
    this.pid = this.#child.pid!;
    createInterface(this.#child.stdout).on("line", (line) => this.#delivered.push(JSON.parse(line) as DeliveredEvent));
    this.#child.stdin.on("error", () => {});
    this.exit = new Promise((resolve) => this.#child.on("exit", (code, signal) => resolve({ code, signal })));
    onTestFinished(async () => {
      this.#child.stdin.end();
      this.#child.kill("SIGCONT");
      const hangTimer = setTimeout(() => this.#child.kill("SIGKILL"), 10_000);
      const { code, signal } = await this.exit;
      clearTimeout(hangTimer);
      if (!this.#isKilled) expect({ code, signal }, "how the ranks' process ended").toEqual({ code: 0, signal: null });
    });
  }

  #isKilled = false;

  kill(signal: NodeJS.Signals): void {
    this.#isKilled ||= signal === "SIGKILL";
    this.#child.kill(signal);
  }

  /** Stops the process by SIGSTOP. Resolves once it is stopped. */
  async stop(): Promise<void> {
    this.#child.kill("SIGSTOP");
    await waitUntilStopped(this.pid);
  }

  /** Executes a command of control_ranks.cc. */
  send(verb: string, id: string, ...fields: (string | number | bigint)[]): void {
    this.#child.stdin.write(`${[verb, id, ...fields].join("\t")}\n`);
  }

  open(id: string, { path, rank, size, world = "w", attempt = 0, secret = "", timeoutMs = 20_000 }: JoinOptions): void {
    this.send("open", id, path, secret, world, attempt, rank, size, timeoutMs);
  }

  join(id: string, options: JoinOptions): void {
    this.open(id, options);
    this.send("join", id);
  }

  /** Returns the events that have been delivered so far. */
  listEvents(id: string, event?: string): readonly DeliveredEvent[] {
    return this.#delivered.filter((each) => each.id === id && (event === undefined || each.event === event));
  }

  /** Waits for the n-th event of this kind. */
  async waitForEvent(id: string, event: string, n = 1): Promise<DeliveredEvent> {
    const describeMissing = (): string =>
      `${id}: ${event} was not delivered ${n} times: ${JSON.stringify(this.listEvents(id))}`;
    await vi.waitFor(() => expect(this.listEvents(id, event).length, describeMissing()).toBeGreaterThanOrEqual(n), {
      timeout: 15_000,
      interval: 2,
    });
    return this.listEvents(id, event)[n - 1]!;
  }
}

/** Waits until a process that was sent SIGSTOP is stopped. */
export async function waitUntilStopped(pid: number): Promise<void> {
  const state = (): string | undefined => readFileSync(`/proc/${pid}/stat`, "latin1").split(") ").at(-1)?.[0];
  await vi.waitFor(() => expect(state()).toBe("T"), { interval: 1 });
}

/** Creates a directory of mode 0700 for the sockets of a test. */
export function createSocketDirectory(): string {
  const directory = mkdtempSync(join(tmpdir(), "control-"));
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
  return directory;
}

/** Starts an agent in this process. */
export async function startAgent(options: Partial<AgentOptions> = {}): Promise<Agent> {
  const agent = await Agent.listen({ path: join(createSocketDirectory(), "agent"), ...options });
  onTestFinished(() => agent.close());
  return agent;
}

/** Starts a root and `count - 1` agents below it, on hosts `n0`, `n1`, …. `fanOut` determines the shape of the tree. */
export async function startTree(count: number, options: Partial<AgentOptions> = {}): Promise<readonly Agent[]> {
  const root = await startAgent({ host: "n0", children: true, ...options });
  const otherAgents = Array.from({ length: count - 1 }, (_, i) =>
    startAgent({ host: `n${i + 1}`, index: i + 1, root: root.address!, ...options }),
  );
  return [root, ...(await Promise.all(otherAgents))];
}

/**
 * Starts ranks `0 … size − 1` in one process, round-robin over the agents. Resolves once all have joined. Ids are the
 * ranks.
 */
export async function startWorld(
  agents: readonly Pick<Agent, "path">[],
  size: number,
  options: Partial<JoinOptions> = {},
): Promise<RankProcess> {
  const ranks = new RankProcess();
  for (let rank = 0; rank < size; rank++)
    ranks.join(`${rank}`, { path: agents[rank % agents.length]!.path, rank, size, ...options });
  for (let rank = 0; rank < size; rank++) await ranks.waitForEvent(`${rank}`, "joined");
  return ranks;
}

/** An agent in a separate process. */
export interface AgentProcess {
  readonly child: ChildProcess;
  readonly path: string;
  readonly address: string;
  /** Stops the process by SIGSTOP. Resolves once it is stopped. */
  stop(): Promise<void>;
}

/** Starts an agent that can be stopped and killed. */
export async function spawnAgent(options: Omit<AgentOptions, "path">): Promise<AgentProcess> {
  const path = join(createSocketDirectory(), "agent");
  const script = join(import.meta.dirname, "agent.mjs");
  const child = spawn(process.execPath, [script, JSON.stringify({ path, ...options })], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  onTestFinished(async () => {
    const exitEvent = child.exitCode === null && child.signalCode === null ? once(child, "exit") : undefined;
    child.kill("SIGKILL");
    await exitEvent;
  });
  const [line] = (await once(child.stdout.setEncoding("utf8"), "data")) as [string];
  const stop = (): Promise<void> => {
    child.kill("SIGSTOP");
    return waitUntilStopped(child.pid!);
  };
  return { child, path, address: line.trim(), stop };
}
