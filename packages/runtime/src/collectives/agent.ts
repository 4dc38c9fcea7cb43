import { existsSync, lstatSync, mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import type { Socket } from "node:net";
import { hostname, networkInterfaces, tmpdir, userInfo } from "node:os";
import { dirname, join, resolve as resolvePath } from "node:path";
import type { Writable } from "node:stream";
import { AddonLoadError, type LaunchEnvironment, launchEnvironment, MosaicError, OptionError } from "@mosaic/core";

/** Address of the control plane for a rank, and the world that the rank joins there. */
export interface AgentAddress extends Disposable {
  /** Path of the agent's Unix socket. */
  readonly path: string;
  /** The job's secret; empty if there is none. */
  readonly secret: string;
  readonly world: string;
  readonly attempt: number;
  /** Must be called once the rank has joined. Until then the agent is kept running. */
  [Symbol.dispose](): void;
}

/** Limit of `sockaddr_un`. */
const MAX_SOCKET_PATH_BYTES = 107;
const MAX_START_ATTEMPTS = 5;
/** Seconds that an agent may take to start. Usually it takes about 0.1 s. */
const START_TIMEOUT_SECONDS = 60;

/**
 * Resolves to the address of this host's agent. This is the launcher's agent (MOSAIC_AGENT) if there is one. Otherwise
 * the first rank of the host starts an agent, whose socket path all ranks of the job on this host derive from `name`,
 * or from the launcher's name of the job. If the ranks are on several hosts, that agent is part of a tree: the agent of
 * rank 0's host listens at MASTER_ADDR, and MOSAIC_TOKEN_FILE is required.
 *
 * @throws OptionError if the job has no name, or if a setting that several hosts require is missing; AddonLoadError if
 * the agent's module is not found; MosaicError if the agent does not start within `timeout` s, or one minute if that is
 * less.
 */
export async function resolveAgentAddress(
  rank: number,
  name?: string,
  timeout: number = START_TIMEOUT_SECONDS,
): Promise<AgentAddress> {
  const { MOSAIC_AGENT, MOSAIC_ATTEMPT, MOSAIC_TOKEN_FILE } = process.env;
  const secret = MOSAIC_TOKEN_FILE ? readSecret(MOSAIC_TOKEN_FILE) : "";
  if (MOSAIC_AGENT !== undefined) {
    const attempt = Number(MOSAIC_ATTEMPT ?? 0);
    return { path: MOSAIC_AGENT, secret, world: name ?? jobName(), attempt, [Symbol.dispose]() {} };
  }
  const environment = launchEnvironment();
  const { attempt, localRank } = environment;
  const endpoint = resolveEndpoint(environment);
  const world = name ?? jobName(environment);
  // Several hosts may share the directory.
  const host = endpoint === undefined ? [] : [hostname()];
  const path = await prepareSocketPath(JSON.stringify([world, attempt, ...host]));
  const isFirstLocalRank = (localRank ?? rank) === 0;
  if (endpoint !== undefined && rank === 0 && !isFirstLocalRank) {
    throw new OptionError({
      where: "connect: ranks on several hosts",
      expected: "local rank 0 for rank 0",
      received: String(localRank),
      remedy: "assign local ranks in the order of ranks on each host",
    });
  }
  const treePosition = endpoint === undefined ? undefined : { index: rank, endpoint };
  const agentConnection = new AgentConnection(path, treePosition, Math.min(timeout, START_TIMEOUT_SECONDS));
  if (isFirstLocalRank) await agentConnection.ensureAgent();
  return { path, secret, world, attempt, [Symbol.dispose]: () => agentConnection.release() };
}

/** Returns a name that distinguishes this job from others. */
function jobName({ job }: LaunchEnvironment = launchEnvironment()): string {
  const knownName = job ?? findProcessManagerName();
  if (knownName !== undefined) return knownName;
  throw new OptionError({
    where: "connect",
    expected: "a job name",
    received: "neither MASTER_PORT nor MOSAIC_RUN_ID in the environment",
    remedy: "start the ranks with mosaic-run, or pass a name to the collectives",
  });
}

/**
 * MPICH has no job name. Its process that starts all ranks of a host, the nearest such ancestor, identifies the job.
 */
function findProcessManagerName(): string | undefined {
  try {
    for (let pid = process.ppid; pid > 1; ) {
      // "pid (name) state parent …". The name is truncated, and may contain any characters.
      const [, name = "", statFields = ""] =
        /^\d+ \((.*)\) (.*)$/s.exec(readFileSync(`/proc/${pid}/stat`, "utf8")) ?? [];
      const fields = statFields.split(" ");
      if (name === "hydra_pmi_proxy") return `hydra ${pid} ${fields[19]}`;
      pid = Number(fields[1]);
    }
  } catch {
    // The system has no /proc.
  }
  return undefined;
}

/** Returns the address at which the agent of rank 0's host listens, or undefined if there is only one host. */
function resolveEndpoint({ launcher, worldSize, localWorldSize, endpoint }: LaunchEnvironment): string | undefined {
  const isLocalSizeUnknown = localWorldSize === undefined;
  if (isLocalSizeUnknown ? !isRemoteAddress(endpoint?.host) : localWorldSize >= worldSize) return undefined;
  const missingError = (expected: string, received: string, remedy: string): OptionError =>
    new OptionError({ where: "connect: ranks on several hosts", expected, received, remedy });
  if (isLocalSizeUnknown) {
    throw missingError(
      "LOCAL_RANK and LOCAL_WORLD_SIZE in the environment",
      `no LOCAL_WORLD_SIZE, and MASTER_ADDR ${endpoint?.host} on a different host`,
      "set them on all ranks, or start the ranks with mosaic-run",
    );
  }
  if (endpoint === undefined) {
    const missingNames = ["MASTER_ADDR", "MASTER_PORT"].filter((name) => !process.env[name]);
    throw missingError(
      "MASTER_ADDR and MASTER_PORT in the environment",
      `${missingNames.map((name) => `no ${name}`).join(", ")}, and ${localWorldSize} of ${worldSize} ranks on this host`,
      `set MASTER_ADDR to an address of rank 0's host, and MASTER_PORT to a free port there${launcher === "Open MPI" ? ": mpirun -x MASTER_ADDR=… -x MASTER_PORT=29400" : ""}`,
    );
  }
  if (!process.env.MOSAIC_TOKEN_FILE) {
    throw missingError(
      "the same secret on all hosts, in the file specified by MOSAIC_TOKEN_FILE",
      "no MOSAIC_TOKEN_FILE in the environment",
      "create one with (umask 077; openssl rand -hex 32 > token) and pass MOSAIC_TOKEN_FILE=token to all ranks",
    );
  }
  return endpoint.host.includes(":") ? `[${endpoint.host}]:${endpoint.port}` : `${endpoint.host}:${endpoint.port}`;
}

/** Whether an address belongs to another host. Host names are not resolved, and count as this host. */
function isRemoteAddress(address: string | undefined): boolean {
  if (address === undefined || !/^[\d.]+$|:/.test(address)) return false;
  const localAddresses = Object.values(networkInterfaces()).flatMap((interfaceAddresses = []) =>
    interfaceAddresses.map((interfaceAddress) => interfaceAddress.address),
  );
  return !address.startsWith("127.") && !localAddresses.includes(address);
}

function readSecret(file: string): string {
  try {
    return readFileSync(file, "utf8").trim();
  } catch (cause) {
    const reason = (cause as Error).message;
    throw new MosaicError(
      `connect: cannot read the secret in MOSAIC_TOKEN_FILE: ${reason}; check the path, and that the job is running`,
      { cause },
    );
  }
}

/** Returns a path in a directory that only this user may access. */
async function prepareSocketPath(job: string): Promise<string> {
  // Imported here because ranks under a launcher do not need these modules, which take some milliseconds to load.
  const { createHash } = await import("node:crypto");
  const { uid } = userInfo();
  const file = createHash("sha256")
    .update(JSON.stringify([job, uid]))
    .digest("hex")
    .slice(0, 32);
  const { XDG_RUNTIME_DIR } = process.env;
  const directories = [...(XDG_RUNTIME_DIR ? [join(XDG_RUNTIME_DIR, "mosaic")] : []), join(tmpdir(), `mosaic-${uid}`)];
  const isUsable = (directory: string): boolean =>
    Buffer.byteLength(join(directory, file)) <= MAX_SOCKET_PATH_BYTES && existsSync(dirname(directory));
  const directory = directories.find(isUsable) ?? `/tmp/mosaic-${uid}`;
  makeDirectory(directory);
  const stat = lstatSync(directory);
  if (stat.isDirectory() && stat.uid === uid && (stat.mode & 0o077) === 0) return join(directory, file);
  throw new OptionError({
    where: `connect: ${directory}`,
    expected: `a directory with mode 700, owned by uid ${uid}`,
    received: `a ${stat.isDirectory() ? "directory" : "file"} with mode ${(stat.mode & 0o777).toString(8)}, owned by uid ${stat.uid}`,
    remedy: "remove the directory, or set XDG_RUNTIME_DIR or TMPDIR to a different directory",
  });
}

/**
 * Makes a directory, but not its parents. `mkdir` with `recursive` never returns if the parent exists and the system
 * reports ENOENT for the new directory, as in /proc.
 */
function makeDirectory(directory: string): void {
  try {
    mkdirSync(directory, { mode: 0o700 });
  } catch (cause) {
    const { code, message } = cause as NodeJS.ErrnoException;
    if (code === "EEXIST") return;
    throw new MosaicError(
      `connect: cannot create a directory for the agent's socket: ${message}; set XDG_RUNTIME_DIR or TMPDIR to a different directory`,
      { cause },
    );
  }
}

/** Arguments of an agent in a tree of several. */
interface TreePosition {
  /** First rank of the agent's host. */
  readonly index: number;
  readonly endpoint: string;
}

/**
 * Holds a connection to the agent open, without sending frames, so that the agent keeps running; if it closes all the
 * same, starts another agent. An agent started here reads end-of-file on its standard input if this process ends before
 * a rank has connected.
 */
class AgentConnection {
  readonly #path: string;
  readonly #treePosition: TreePosition | undefined;
  readonly #timeout: number;
  #socket: Socket | undefined;
  #agentStdin: Writable | undefined;
  #isReleased = false;

  constructor(path: string, treePosition: TreePosition | undefined, timeout: number) {
    this.#path = path;
    this.#treePosition = treePosition;
    this.#timeout = timeout;
  }

  /** Connects to the agent, and starts one first if none listens. */
  async ensureAgent(): Promise<void> {
    for (let attempt = 0; attempt < MAX_START_ATTEMPTS; attempt++) {
      const socket = await tryConnect(this.#path);
      if (socket !== undefined) return this.#keepOpen(socket);
      this.#agentStdin = await startAgent(this.#path, this.#treePosition, this.#timeout);
    }
    throw new MosaicError(`connect: the agent at ${this.#path} exits at startup; remove this socket file`);
  }

  release(): void {
    this.#isReleased = true;
    this.#socket?.destroy();
    this.#agentStdin?.destroy();
  }

  #keepOpen(socket: Socket): void {
    this.#socket = socket;
    if (this.#isReleased) socket.destroy();
    // If that fails, the rank's own connection reports the failure.
    socket.on("close", () => void (this.#isReleased ? undefined : this.ensureAgent().catch(() => {})));
  }
}

async function tryConnect(path: string): Promise<Socket | undefined> {
  const { connect } = await import("node:net");
  const socket = connect({ path });
  return new Promise((resolve) => {
    socket.once("connect", () => resolve(socket.unref().resume()));
    socket.on("error", () => resolve(undefined));
  });
}

/**
 * Starts an agent in a session of its own, so that it outlives this rank as long as other ranks of the host run.
 * Resolves to its standard input once this agent, or another one that was faster, listens.
 */
async function startAgent(path: string, treePosition: TreePosition | undefined, timeout: number): Promise<Writable> {
  const { spawn } = await import("node:child_process");
  const { NODE_OPTIONS: _, MOSAIC_TOKEN_FILE: file, ...env } = process.env;
  const treeArgs = treePosition === undefined ? [] : [String(treePosition.index), treePosition.endpoint];
  const child = spawn(process.execPath, [resolveAgentModule(), path, ...treeArgs], {
    cwd: "/",
    detached: true,
    env: { ...env, ...(file ? { MOSAIC_TOKEN_FILE: resolvePath(file) } : {}) },
    stdio: ["pipe", "pipe", "pipe"],
  });
  let [stdoutText, stderrText] = ["", ""];
  child.stderr.on("data", (chunk: Buffer) => (stderrText += String(chunk)));
  return new Promise((resolve, reject) => {
    const rejectStart = (reason: string): void => {
      clearTimeout(timer);
      reject(new MosaicError(`connect: the control-plane agent of this host did not start: ${reason}`));
    };
    const timer = setTimeout(() => {
      rejectStart(
        `timed out after ${timeout} s: it printed neither "ready" nor "in-use"${stderrText && `; ${stderrText.trim()}`}`,
      );
      child.kill("SIGKILL");
    }, timeout * 1000);
    child.on("error", ({ message }) => rejectStart(message));
    child.on("close", (code) => rejectStart(stderrText.trim() || `exit code ${code}`));
    child.stdout.on("data", (chunk: Buffer) => {
      stdoutText += String(chunk);
      if (!/^(ready|in-use)\n/.test(stdoutText)) return;
      clearTimeout(timer);
      child.stdout.destroy();
      child.stderr.destroy();
      child.unref();
      (child.stdin as Socket).unref();
      resolve(child.stdin);
    });
  });
}

function resolveAgentModule(): string {
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
      "  - @mosaic/launcher was not built: run `npm run build` in packages/launcher",
      "  - a bundler moved the JavaScript: mark @mosaic/runtime and @mosaic/launcher as external, or start the ranks with mosaic-run",
    ];
    throw new AddonLoadError(lines.join("\n"), { cause });
  }
}
