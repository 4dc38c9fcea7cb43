import { existsSync, lstatSync, mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import type { Socket } from "node:net";
import { tmpdir, userInfo } from "node:os";
import { dirname, join } from "node:path";
import type { Writable } from "node:stream";
import { AddonLoadError, MosaicError, OptionError } from "@mosaic/core";

/** Where a rank finds the control plane, and the world that it joins there. */
export interface AgentAddress extends Disposable {
  /** Of the agent's Unix socket. */
  readonly path: string;
  /** The job's secret; empty where there is none. */
  readonly secret: string;
  readonly world: string;
  readonly attempt: number;
  /** To be called once the rank has joined: until then an agent that was found does not end. */
  [Symbol.dispose](): void;
}

/** `sockaddr_un` holds 107 bytes. */
const LONGEST_PATH = 107;
const MOST_ATTEMPTS = 5;
/** Seconds that an agent may take to start, which usually are a tenth. */
const LONGEST_START = 60;

/**
 * The agent of this host: the launcher's (MOSAIC_AGENT), else one that the first rank of the host starts, under a path that
 * all ranks of the job derive from `name`, or from MASTER_ADDR, MASTER_PORT, MOSAIC_RUN_ID and MOSAIC_ATTEMPT.
 *
 * @throws OptionError where nothing names the job, AddonLoadError where the agent cannot be found, and MosaicError where it
 * does not start, within `timeout` s if that is less than a minute.
 */
export async function agentAddress(
  rank: number,
  name?: string,
  timeout: number = LONGEST_START,
): Promise<AgentAddress> {
  const { MOSAIC_AGENT, MOSAIC_ATTEMPT, MOSAIC_TOKEN_FILE, LOCAL_RANK } = process.env;
  const world = name ?? jobName();
  const attempt = Number(MOSAIC_ATTEMPT ?? 0);
  const secret = MOSAIC_TOKEN_FILE === undefined ? "" : secretIn(MOSAIC_TOKEN_FILE);
  if (MOSAIC_AGENT !== undefined) return { path: MOSAIC_AGENT, secret, world, attempt, [Symbol.dispose]() {} };
  const path = await socketPath(JSON.stringify([world, attempt]));
  const isFirst = LOCAL_RANK === undefined ? rank === 0 : Number(LOCAL_RANK) === 0;
  const keepAlive = new KeepAlive(path, Math.min(timeout, LONGEST_START));
  if (isFirst) await keepAlive.ensureAgent();
  return { path, secret, world, attempt, [Symbol.dispose]: () => keepAlive.release() };
}

/** What distinguishes this job from any other. */
function jobName(): string {
  const { MASTER_ADDR = "", MASTER_PORT, MOSAIC_RUN_ID } = process.env;
  if (MOSAIC_RUN_ID !== undefined) return MOSAIC_RUN_ID;
  if (MASTER_PORT !== undefined) return `${MASTER_ADDR}:${MASTER_PORT}`;
  throw new OptionError({
    where: "connect",
    expected: "the name of a job",
    received: "neither MASTER_PORT nor MOSAIC_RUN_ID in the environment",
    remedy: "start the ranks with mosaic-run, or pass a name to the collectives",
  });
}

function secretIn(file: string): string {
  try {
    return readFileSync(file, "utf8").trim();
  } catch (cause) {
    const reason = (cause as Error).message;
    throw new MosaicError(`connect: no secret in MOSAIC_TOKEN_FILE: ${reason}; has the job ended?`, { cause });
  }
}

/** A path in a directory that only this user may enter. */
async function socketPath(job: string): Promise<string> {
  // Under a launcher no rank needs these modules, which take some milliseconds of its start.
  const { createHash } = await import("node:crypto");
  const { uid } = userInfo();
  const file = createHash("sha256")
    .update(JSON.stringify([job, uid]))
    .digest("hex")
    .slice(0, 32);
  const { XDG_RUNTIME_DIR } = process.env;
  const directories = [...(XDG_RUNTIME_DIR ? [join(XDG_RUNTIME_DIR, "mosaic")] : []), join(tmpdir(), `mosaic-${uid}`)];
  const fits = (directory: string): boolean =>
    Buffer.byteLength(join(directory, file)) <= LONGEST_PATH && existsSync(dirname(directory));
  const directory = directories.find(fits) ?? `/tmp/mosaic-${uid}`;
  makeDirectory(directory);
  const stat = lstatSync(directory);
  if (stat.isDirectory() && stat.uid === uid && (stat.mode & 0o077) === 0) return join(directory, file);
  throw new OptionError({
    where: `connect: ${directory}`,
    expected: `a directory of mode 700 that belongs to uid ${uid}`,
    received: `mode ${(stat.mode & 0o777).toString(8)}, uid ${stat.uid}`,
    remedy: "remove it, or set XDG_RUNTIME_DIR or TMPDIR to another directory",
  });
}

/**
 * Of one level: `mkdir` with `recursive` tries for ever where the parent exists and the system refuses a new directory with
 * ENOENT, as in /proc.
 */
function makeDirectory(directory: string): void {
  try {
    mkdirSync(directory, { mode: 0o700 });
  } catch (cause) {
    const { code, message } = cause as NodeJS.ErrnoException;
    if (code === "EEXIST") return;
    throw new MosaicError(
      `connect: no directory for the agent's socket: ${message}; set XDG_RUNTIME_DIR or TMPDIR to another directory`,
      { cause },
    );
  }
}

/**
 * A connection without frames, so that the agent stays; where that ends all the same, another agent is started. An agent
 * that was started here reads the end of its standard input if this process ends before a rank has connected.
 */
class KeepAlive {
  readonly #path: string;
  readonly #timeout: number;
  #socket: Socket | undefined;
  #input: Writable | undefined;
  #isReleased = false;

  constructor(path: string, timeout: number) {
    this.#path = path;
    this.#timeout = timeout;
  }

  /** Starts an agent where none listens. */
  async ensureAgent(): Promise<void> {
    for (let attempt = 0; attempt < MOST_ATTEMPTS; attempt++) {
      const socket = await connectTo(this.#path);
      if (socket !== undefined) return this.#keep(socket);
      this.#input = await startAgent(this.#path, this.#timeout);
    }
    throw new MosaicError(`connect: agents at ${this.#path} end as soon as they start; remove that socket`);
  }

  release(): void {
    this.#isReleased = true;
    this.#socket?.destroy();
    this.#input?.destroy();
  }

  #keep(socket: Socket): void {
    this.#socket = socket;
    if (this.#isReleased) socket.destroy();
    // A failure from here on is that of the rank's own connection.
    socket.on("close", () => void (this.#isReleased ? undefined : this.ensureAgent().catch(() => {})));
  }
}

async function connectTo(path: string): Promise<Socket | undefined> {
  const { connect } = await import("node:net");
  const socket = connect({ path });
  return new Promise((resolve) => {
    socket.once("connect", () => resolve(socket.unref().resume()));
    socket.on("error", () => resolve(undefined));
  });
}

/**
 * A process of its own session, so that it outlives this rank while others of the host are there. Resolves to its standard
 * input once it, or another agent that was faster, listens.
 */
async function startAgent(path: string, timeout: number): Promise<Writable> {
  const { spawn } = await import("node:child_process");
  const { NODE_OPTIONS: _, ...env } = process.env;
  const child = spawn(process.execPath, [agentModule(), path], {
    cwd: "/",
    detached: true,
    env,
    stdio: ["pipe", "pipe", "pipe"],
  });
  let [output, errors] = ["", ""];
  child.stderr.on("data", (chunk: Buffer) => (errors += String(chunk)));
  return new Promise((resolve, reject) => {
    const fail = (reason: string): void => {
      clearTimeout(deadline);
      reject(new MosaicError(`connect: the control-plane agent of this host did not start: ${reason}`));
    };
    const deadline = setTimeout(() => {
      fail(`timed out after ${timeout} s: it printed neither "ready" nor "taken"${errors && `; ${errors.trim()}`}`);
      child.kill("SIGKILL");
    }, timeout * 1000);
    child.on("error", ({ message }) => fail(message));
    child.on("close", (code) => fail(errors.trim() || `exit code ${code}`));
    child.stdout.on("data", (chunk: Buffer) => {
      output += String(chunk);
      if (!/^(ready|taken)\n/.test(output)) return;
      clearTimeout(deadline);
      child.stdout.destroy();
      child.stderr.destroy();
      child.unref();
      (child.stdin as Socket).unref();
      resolve(child.stdin);
    });
  });
}

function agentModule(): string {
  const name = "@mosaic/launcher/agent-process";
  try {
    return createRequire(import.meta.url).resolve(name);
  } catch (cause) {
    const lines = [
      `@mosaic/runtime: cannot start the control-plane agent (Node ${process.versions.node})`,
      `  module: ${name} (not found)`,
      `  reason: ${cause instanceof Error ? cause.message.split("\n")[0] : String(cause)}`,
      "Likely causes:",
      "  - @mosaic/launcher is not installed: run `npm install @mosaic/launcher`",
      "  - it was not built: run `npm run build` in packages/launcher",
      "  - a bundler moved the JavaScript: mark @mosaic/runtime and @mosaic/launcher as external, or start the ranks with mosaic-run",
    ];
    throw new AddonLoadError(lines.join("\n"), { cause });
  }
}
