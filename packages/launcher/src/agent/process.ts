/**
 * An agent in a separate process, for hosts without a launcher: `node agent-process.js SOCKET [INDEX ENDPOINT]`. It
 * prints `ready` when ranks can connect, or `in-use` if another agent already listens, and exits after its last rank.
 * The secret, if any, is read from the file MOSAIC_TOKEN_FILE. With ENDPOINT, host:port, ranks are on several hosts and
 * a secret is required: agent 0 listens at ENDPOINT over TLS, and all other agents connect to it.
 */
import { readFileSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import { UsageError } from "../errors.ts";
import { parseFlag } from "../flag-text.ts";
import { bindAddress } from "../nodes/address.ts";
import { jobSecret } from "../secret.ts";
import { findPortOwner } from "../report/port-owner.ts";
import { Agent, type AgentOptions } from "./agent.ts";
import { parseAddress } from "./network.ts";
import { sharedTlsNetwork, tlsNetwork, TlsServer } from "./tls.ts";

/** Without a hello of a rank, this process exits after this time, or with the process that started it. */
const HELLO_TIMEOUT_MS = 60_000;
/** Time within which ranks that found the socket before it was unlinked have connected. */
const DRAIN_DELAY_MS = 100;
/** Time within which the agent of a previous attempt closes the port and the host's name can be resolved. */
const BIND_TIMEOUT_MS = 5_000;
const RETRY_DELAY_MS = 100;
/**
 * The agents of such jobs are not numbered consecutively. All are children of the root, so that none waits for a
 * missing parent.
 */
const STAR_FAN_OUT = 65_536;

// The parent process reads the output only until this process is ready.
process.stdout.on("error", () => {});
process.stderr.on("error", () => {});

async function serveAgent(path: string, agentOptions: Partial<AgentOptions>): Promise<void> {
  let isAwaitingHello = true;
  const agent = await Agent.listen({
    ...{ path, ...agentOptions },
    onIdle: () => void (isAwaitingHello && !agent.hasConnections ? undefined : closeIfUnused(agent)),
  });
  const stopWaiting = (): void => {
    isAwaitingHello = false;
    void closeIfUnused(agent);
  };
  setTimeout(stopWaiting, HELLO_TIMEOUT_MS);
  // Standard input ends when the process that started this one exits.
  process.stdin.on("end", stopWaiting).on("error", stopWaiting).resume();
  process.on("exit", () => void agent.close());
  for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"] as const) process.on(signal, () => process.exit(0));
  // A scheduler may send these signals, which are meant for the ranks, to all processes of a job.
  for (const signal of ["SIGUSR1", "SIGUSR2"] as const) process.on(signal, () => {});
  process.stdout.write("ready\n");
}

async function closeIfUnused(agent: Agent): Promise<void> {
  if (agent.connections > 0) return;
  // The socket is unlinked first, so that a rank that looks for an agent from here on starts a new one.
  agent.unlink();
  await delay(DRAIN_DELAY_MS);
  if (agent.connections === 0) process.exit(0);
  // If another agent has taken the path, the socket file is not restored, and this agent still serves its ranks.
  await agent.restoreSocketFile().catch(() => {});
}

function singleHostOptions(): Partial<AgentOptions> {
  const { MOSAIC_TOKEN_FILE: file } = process.env;
  return { secret: file === undefined ? "" : readFileSync(file, "utf8").trim() };
}

async function multiHostOptions(index: number, endpoint: string): Promise<Partial<AgentOptions>> {
  const secret = jobSecret();
  if (index > 0) return { secret, index, root: endpoint, children: false, network: tlsNetwork({ secret }) };
  return {
    secret,
    children: true,
    fanOut: STAR_FAN_OUT,
    network: sharedTlsNetwork(await listenAt(endpoint, secret), secret),
  };
}

function parseBindAny(text: string): boolean {
  const value = parseFlag(text);
  if (value === undefined) throw new UsageError(`MOSAIC_BIND_ANY: expected true or false, received "${text}"`);
  return value;
}

async function listenAt(address: string, secret: string): Promise<TlsServer> {
  const endpoint = parseAddress(address);
  const hasTimedOut = startDeadline(BIND_TIMEOUT_MS);
  const bindsAllAddresses = parseBindAny(process.env.MOSAIC_BIND_ANY ?? "");
  const bindOptions = { endpoint, bindsAllAddresses, timeoutMs: BIND_TIMEOUT_MS, name: "MASTER_ADDR" };
  const onWaiting = (message: string): void => console.error(message);
  const host = await bindAddress(bindOptions, { isEnding: hasTimedOut, onWaiting });
  for (;;) {
    try {
      return await TlsServer.listen({ secret, host, port: endpoint.port });
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException;
      if (code === "EADDRINUSE" && !hasTimedOut()) await delay(RETRY_DELAY_MS);
      else if (code === "EADDRINUSE")
        throw new UsageError(
          `port ${endpoint.port} is in use by ${findPortOwner(endpoint.port) ?? "another process"}; set MASTER_PORT or MOSAIC_MASTER_PORT to a different port on all hosts`,
        );
      else if (code === "EADDRNOTAVAIL")
        throw new UsageError(
          `MASTER_ADDR ${endpoint.host}: ${host} is not an address of this host, which runs rank 0; set MASTER_ADDR to an address ` +
            "of this host that the other hosts can reach, or set MOSAIC_BIND_ANY=1 if this host is behind NAT",
        );
      else throw new UsageError(`MASTER_ADDR ${endpoint.host}: cannot listen on ${host}: ${message}`);
    }
  }
}

function startDeadline(ms: number): () => boolean {
  const deadline = performance.now() + ms;
  return () => performance.now() >= deadline;
}

const [path, index, endpoint] = process.argv.slice(2);
try {
  if (path === undefined) throw new TypeError("expected a socket path as the first argument, received none");
  await serveAgent(
    path,
    endpoint === undefined ? singleHostOptions() : await multiHostOptions(Number(index), endpoint),
  );
} catch (error) {
  const { code, message } = error as NodeJS.ErrnoException;
  if (code === "EADDRINUSE") {
    // Another agent already listens at the socket, so this one is not needed.
    process.stdout.write("in-use\n", () => process.exit(0));
  } else {
    process.stderr.write(`agent${path === undefined ? "" : ` at ${path}`}: ${message}\n`, () => process.exit(1));
  }
}
