import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { type AddressInfo, createServer, type Server } from "node:net";
import { tmpdir, userInfo } from "node:os";
import { dirname, join } from "node:path";
import { MosaicError, OptionError } from "@mosaic/core";
import { afterEach, beforeEach, describe, expect, onTestFinished, test, vi } from "vitest";
import { type AgentAddress, resolveAgentAddress as find } from "../../src/collectives/agent.ts";
import { RankProcess, createSocketDirectory, startAgent } from "./ranks.ts";

const SCRIPT = "agent-process.js";

let directory: string;
let openAddresses: AgentAddress[];

beforeEach(() => {
  directory = createSocketDirectory();
  openAddresses = [];
  for (const name of [
    "MOSAIC_AGENT",
    "MOSAIC_TOKEN_FILE",
    "MOSAIC_ATTEMPT",
    ...["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"],
  ])
    vi.stubEnv(name, undefined);
  vi.stubEnv("XDG_RUNTIME_DIR", directory);
  vi.stubEnv("MOSAIC_RUN_ID", `run-${process.pid}`);
});
afterEach(async () => {
  vi.unstubAllEnvs();
  releaseAddresses();
  // In every test, the agent that it started must exit with its last rank and leave no files.
  await vi.waitFor(() => expect(listAgentPids(directory)).toEqual([]), { timeout: 5000, interval: 5 });
});

const portOf = (server: Server): number => (server.address() as AddressInfo).port;

async function listen(port: number): Promise<Server> {
  const server = createServer().listen(port, "127.0.0.1");
  await once(server, "listening");
  return server;
}

/** Returns a server on a port whose successor, which other programs of this machine may use, is free. */
async function listenBelowFreePort(): Promise<Server> {
  for (;;) {
    const server = await listen(0);
    const nextServer = await listen(portOf(server) + 1).catch(() => undefined);
    if (nextServer) {
      nextServer.close();
      return server;
    }
    server.close();
  }
}

async function agentAddress(rank: number, name?: string): Promise<AgentAddress> {
  const address = await find(rank, name);
  openAddresses.push(address);
  return address;
}

/** Releases the addresses, as ranks do once they have joined. */
function releaseAddresses(): void {
  for (const address of openAddresses.splice(0)) address[Symbol.dispose]();
}

/** Returns the process ids of agents whose socket is below a directory. */
function listAgentPids(path: string): number[] {
  return readdirSync("/proc")
    .filter((pid) => /^\d+$/.test(pid))
    .filter((pid) => readCommand(pid).includes(`${SCRIPT}\0${path}`))
    .map(Number);
}

function readCommand(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "latin1");
  } catch {
    return "";
  }
}

const waitUntilGone = (path: string) =>
  vi.waitFor(() => expect(existsSync(path)).toBe(false), { timeout: 5000, interval: 5 });

describe("without a launcher", () => {
  test("an agent that does not become ready in time is killed", async () => {
    const [script, pidFile] = [join(directory, "node"), join(directory, "pid")];
    writeFileSync(script, `#!/bin/sh\necho $$ > ${pidFile}\nexec sleep 600\n`, { mode: 0o755 });
    const { execPath } = process;
    process.execPath = script;
    try {
      await expect(find(0, "job", 0.5)).rejects.toThrow(
        /the control-plane agent of this host did not start: timed out after 0\.5 s: it printed neither "ready" nor/,
      );
    } finally {
      process.execPath = execPath;
    }
    const pid = readFileSync(pidFile, "utf8").trim();
    await vi.waitFor(() => expect(readCommand(pid)).toBe(""), { interval: 5 });
  });

  test("the first rank of the host starts an agent, which ends with the last rank", async () => {
    const addresses = [await agentAddress(0), await agentAddress(1)];
    const [{ path, world, attempt, secret }] = addresses as [(typeof addresses)[0]];
    expect(addresses[1]).toMatchObject({ path, world, attempt, secret });
    expect(dirname(path)).toBe(join(directory, "mosaic"));
    expect(statSync(dirname(path)).mode & 0o777).toBe(0o700);
    expect(listAgentPids(directory)).toHaveLength(1);
    const ranks = new RankProcess();
    for (const rank of [0, 1]) ranks.join(`${rank}`, { path, rank, size: 2, world, attempt, secret });
    for (const rank of [0, 1]) await ranks.waitForEvent(`${rank}`, "joined");
    releaseAddresses();
    ranks.send("leave", "0", "");
    await ranks.waitForEvent("1", "exited");
    expect(listAgentPids(directory)).toHaveLength(1);
    ranks.send("leave", "1", "");
    await waitUntilGone(path);
  });

  test("an agent ends when its ranks are killed", async () => {
    const { path, world } = await agentAddress(0);
    const ranks = new RankProcess();
    ranks.join("0", { path, rank: 0, size: 1, world });
    await ranks.waitForEvent("0", "joined");
    releaseAddresses();
    ranks.kill("SIGKILL");
    await waitUntilGone(path);
  });

  test("an agent keeps running while its address is held, and ends once the address is released", async () => {
    const { path, world } = await agentAddress(0);
    const agents = listAgentPids(directory);
    const ranks = new RankProcess();
    for (const id of ["a", "b", "c"]) {
      ranks.join(id, { path, rank: 0, size: 1, world });
      await ranks.waitForEvent(id, "joined");
      ranks.send("leave", id, "");
      await ranks.waitForEvent(id, "left");
    }
    expect(listAgentPids(directory)).toEqual(agents);
    releaseAddresses();
    await waitUntilGone(path);
  });

  test("an agent that was killed is replaced, both while its address is held and afterwards", async () => {
    const { path, world } = await agentAddress(0);
    const ranks = new RankProcess();
    const killAgent = () => process.kill(listAgentPids(directory)[0]!, "SIGKILL");
    killAgent();
    ranks.join("a", { path, rank: 0, size: 1, world });
    await ranks.waitForEvent("a", "joined");
    releaseAddresses();
    killAgent();
    await ranks.waitForEvent("a", "controlLost");
    expect(existsSync(path)).toBe(true);
    await agentAddress(0);
    ranks.join("b", { path, rank: 0, size: 1, world });
    await ranks.waitForEvent("b", "joined");
    releaseAddresses();
    ranks.send("leave", "b", "");
    await waitUntilGone(path);
  });

  test("LOCAL_RANK determines which rank starts the agent, and the other ranks wait for it", async () => {
    vi.stubEnv("LOCAL_RANK", "1");
    const { path, world } = await agentAddress(0);
    expect(existsSync(path)).toBe(false);
    const ranks = new RankProcess();
    ranks.join("0", { path, rank: 0, size: 1, world });
    vi.stubEnv("LOCAL_RANK", "0");
    expect((await agentAddress(5)).path).toBe(path);
    await ranks.waitForEvent("0", "joined");
    ranks.send("drop", "0");
  });

  test("one of several agents that start at the same time serves all ranks", async () => {
    const addresses = await Promise.all(Array.from({ length: 4 }, () => agentAddress(0)));
    expect(new Set(addresses.map(({ path }) => path)).size).toBe(1);
    await vi.waitFor(() => expect(listAgentPids(directory)).toHaveLength(1), { timeout: 5000 });
    const [{ path, world }] = addresses as [(typeof addresses)[0]];
    const ranks = new RankProcess();
    ranks.join("0", { path, rank: 0, size: 1, world });
    await ranks.waitForEvent("0", "joined");
    releaseAddresses();
    ranks.send("drop", "0");
  });

  test("the agent uses the secret in MOSAIC_TOKEN_FILE, and a file that cannot be read is rejected", async () => {
    const file = join(directory, "token");
    writeFileSync(file, "s3cret\n");
    vi.stubEnv("MOSAIC_TOKEN_FILE", file);
    const { path, world, secret } = await agentAddress(0);
    expect(secret).toBe("s3cret");
    const ranks = new RankProcess();
    ranks.join("wrong", { path, rank: 0, size: 1, world });
    ranks.join("right", { path, rank: 0, size: 1, world, secret });
    await ranks.waitForEvent("wrong", "refused");
    await ranks.waitForEvent("right", "joined");
    ranks.send("drop", "right");
    vi.stubEnv("MOSAIC_TOKEN_FILE", join(directory, "none"));
    await expect(agentAddress(0)).rejects.toThrow(
      /cannot read the secret in MOSAIC_TOKEN_FILE.*check the path, and that the job is running/s,
    );
  });
});

describe("ranks of torchrun, mpirun or srun on several hosts", () => {
  /** Opens the address on host `host` of two with two ranks each. Each host has its own directory of sockets. */
  async function openAddressOn(host: number, local: number): Promise<AgentAddress> {
    const hostDirectory = join(directory, `host${host}`);
    mkdirSync(hostDirectory, { recursive: true, mode: 0o700 });
    vi.stubEnv("XDG_RUNTIME_DIR", hostDirectory);
    const rank = 2 * host + local;
    const rankEnv = { RANK: rank, WORLD_SIZE: 4, LOCAL_RANK: local, LOCAL_WORLD_SIZE: 2 };
    for (const [name, value] of Object.entries(rankEnv)) vi.stubEnv(name, String(value));
    return await agentAddress(rank);
  }
  const stubEnv = (env: Readonly<Record<string, string | undefined>>): void => {
    for (const [name, value] of Object.entries(env)) vi.stubEnv(name, value);
  };
  const secret = "0123456789abcdef".repeat(2);
  let port: string;

  beforeEach(async () => {
    const file = join(directory, "token");
    writeFileSync(file, `${secret}\n`, { mode: 0o600 });
    const server = await listen(0);
    port = String(portOf(server));
    server.close();
    stubEnv({ MOSAIC_RUN_ID: undefined, MOSAIC_TOKEN_FILE: file, MASTER_ADDR: "127.0.0.1", MASTER_PORT: port });
  });

  test("the first rank of each host starts an agent, which serves all ranks until the last one leaves", async () => {
    const hostAddresses = [
      await openAddressOn(0, 0),
      await openAddressOn(0, 1),
      await openAddressOn(1, 0),
      await openAddressOn(1, 1),
    ];
    const [{ world }] = hostAddresses as [AgentAddress];
    expect(world).toBe(`127.0.0.1:${port}`);
    expect(new Set(hostAddresses.map(({ path }) => path)).size).toBe(2);
    expect(listAgentPids(directory)).toHaveLength(2);
    const ranks = new RankProcess();
    hostAddresses.forEach(({ path }, rank) => ranks.join(`${rank}`, { path, rank, size: 4, world, secret }));
    for (const rank of [0, 1, 2, 3]) await ranks.waitForEvent(`${rank}`, "joined");
    releaseAddresses();
    // The ranks of rank 0's host leave first. Its agent must keep running for the other ranks.
    for (const rank of [0, 1]) ranks.send("leave", `${rank}`, "");
    await ranks.waitForEvent("3", "exited");
    for (const rank of [2, 3]) ranks.send("leave", `${rank}`, "");
    for (const { path } of hostAddresses) await waitUntilGone(path);
  });

  test("every rank rejects a missing secret, and rank 0 a secret that is too short", async () => {
    stubEnv({ MOSAIC_TOKEN_FILE: undefined });
    for (const local of [0, 1])
      await expect(openAddressOn(1, local)).rejects.toThrow(
        "connect: ranks on several hosts: expected the same secret on all hosts, in the file specified by MOSAIC_TOKEN_FILE, received no " +
          "MOSAIC_TOKEN_FILE in the environment; create one with (umask 077; openssl rand -hex 32 > token)",
      );
    writeFileSync(join(directory, "short"), "short", { mode: 0o600 });
    stubEnv({ MOSAIC_TOKEN_FILE: join(directory, "short") });
    await expect(openAddressOn(0, 0)).rejects.toThrow(
      /did not start: .*short: expected a secret of 32 to 1024 bytes, received 5/s,
    );
  });

  test("rank 0 rejects a port that is in use, and an address of another host", async () => {
    const server = createServer().listen(Number(port), "127.0.0.1");
    await once(server, "listening");
    onTestFinished(() => void server.close());
    // The process that listens there may be about to exit, such as the agent of an earlier attempt, so this is retried.
    await expect(openAddressOn(0, 0)).rejects.toThrow(
      new RegExp(
        `port ${port} is in use by .*; set MASTER_PORT or MOSAIC_MASTER_PORT to a different port on all hosts`,
      ),
    );
    stubEnv({ MASTER_ADDR: "192.0.2.1" });
    await expect(openAddressOn(0, 0)).rejects.toThrow(/192\.0\.2\.1 is not an address of this host, which runs rank 0/);
  }, 30_000);

  test("rank 0 rejects a MOSAIC_BIND_ANY that is neither on nor off", async () => {
    stubEnv({ MOSAIC_BIND_ANY: "all" });
    await expect(openAddressOn(0, 0)).rejects.toThrow(/MOSAIC_BIND_ANY: expected true or false, received "all"/);
    for (const value of ["Off", "yes"]) {
      stubEnv({ MOSAIC_BIND_ANY: value });
      await openAddressOn(0, 0);
      releaseAddresses();
      await vi.waitFor(() => expect(listAgentPids(directory)).toEqual([]), { timeout: 5000, interval: 5 });
    }
  });

  test("rank 0 waits for the port to be released, and uses a port other than that of torchrun's store", async () => {
    const server = await listen(Number(port));
    setTimeout(() => server.close(), 500);
    await openAddressOn(0, 0);
    releaseAddresses();
    expect(server.listening).toBe(false);
    const store = await listenBelowFreePort();
    onTestFinished(() => void store.close());
    stubEnv({ MASTER_PORT: String(portOf(store)), TORCHELASTIC_USE_AGENT_STORE: "True" });
    await openAddressOn(0, 0);
  });

  test("missing variables and a wrong LOCAL_RANK of rank 0 are reported by name", async () => {
    stubEnv({ MASTER_PORT: undefined });
    await expect(openAddressOn(1, 0)).rejects.toThrow(
      "connect: ranks on several hosts: expected MASTER_ADDR and MASTER_PORT in the environment, received no MASTER_PORT, and",
    );
    stubEnv({ MASTER_ADDR: "192.0.2.1", MASTER_PORT: port, LOCAL_RANK: undefined, LOCAL_WORLD_SIZE: undefined });
    await expect(agentAddress(2)).rejects.toThrow(
      "expected LOCAL_RANK and LOCAL_WORLD_SIZE in the environment, received no LOCAL_WORLD_SIZE, and MASTER_ADDR 192.0.2.1 on a different host",
    );
    stubEnv({ RANK: "0", WORLD_SIZE: "4", LOCAL_RANK: "1", LOCAL_WORLD_SIZE: "2" });
    await expect(agentAddress(0)).rejects.toThrow(
      "connect: ranks on several hosts: expected local rank 0 for rank 0, received 1",
    );
  });
});

describe("the agent's address", () => {
  test("is the launcher's if there is one", async () => {
    const agent = await startAgent();
    vi.stubEnv("MOSAIC_AGENT", agent.path);
    vi.stubEnv("MOSAIC_ATTEMPT", "3");
    const world = `run-${process.pid}`;
    expect(await agentAddress(0)).toMatchObject({ path: agent.path, secret: "", world, attempt: 3 });
    expect(await agentAddress(0, "mine")).toMatchObject({ path: agent.path, world: "mine" });
  });

  test("differs by job, attempt and name, and is the same for the same variables", async () => {
    const resolveSocketPath = async (env: Record<string, string | undefined>, name?: string): Promise<string> => {
      for (const [key, value] of Object.entries(env)) vi.stubEnv(key, value);
      return (await agentAddress(1, name)).path;
    };
    const jobs = [
      await resolveSocketPath({ MOSAIC_RUN_ID: "a" }),
      await resolveSocketPath({ MOSAIC_RUN_ID: "b" }),
      await resolveSocketPath({ MOSAIC_RUN_ID: "a", MOSAIC_ATTEMPT: "1" }),
      await resolveSocketPath({ MOSAIC_RUN_ID: undefined, MASTER_ADDR: "h", MASTER_PORT: "29500" }),
      await resolveSocketPath({ MASTER_PORT: "29501" }),
      await resolveSocketPath({}, "name"),
    ];
    expect(new Set(jobs).size).toBe(jobs.length);
    expect(await resolveSocketPath({ MASTER_PORT: "29501" })).toBe(jobs[4]);
  });

  test("is in a directory of mode 700 of this user, and within the length limit of socket paths", async () => {
    vi.stubEnv("XDG_RUNTIME_DIR", undefined);
    expect(dirname((await agentAddress(1)).path)).toBe(join(tmpdir(), `mosaic-${userInfo().uid}`));
    vi.stubEnv("TMPDIR", `/tmp/${"x".repeat(100)}`);
    expect(dirname((await agentAddress(1)).path)).toBe(`/tmp/mosaic-${userInfo().uid}`);
    vi.stubEnv("XDG_RUNTIME_DIR", directory);
    mkdirSync(join(directory, "mosaic"));
    chmodSync(join(directory, "mosaic"), 0o755);
    await expect(agentAddress(1)).rejects.toThrow(OptionError);
    await expect(agentAddress(1)).rejects.toThrow(
      /expected a directory with mode 700, .*, received a directory with mode 755/,
    );
  });

  test("is rejected if its directory cannot be created, and in the default place if XDG_RUNTIME_DIR is missing", async () => {
    vi.stubEnv("XDG_RUNTIME_DIR", "/proc");
    await expect(agentAddress(1)).rejects.toThrow(
      /^connect: cannot create a directory for the agent's socket: E[A-Z]+: .*\/proc\/mosaic'; set XDG_RUNTIME_DIR or TMPDIR/,
    );
    vi.stubEnv("XDG_RUNTIME_DIR", "/proc/x");
    expect(dirname((await agentAddress(1)).path)).toBe(join(tmpdir(), `mosaic-${userInfo().uid}`));
  });

  test("requires the name of a job", async () => {
    vi.stubEnv("MOSAIC_RUN_ID", undefined);
    await expect(agentAddress(0)).rejects.toThrow(/neither MASTER_PORT nor MOSAIC_RUN_ID in the environment; start/);
  });

  test("is rejected with the agent's error if the agent cannot start", async () => {
    const path = join(directory, "mosaic");
    mkdirSync(path, { mode: 0o700 });
    vi.stubEnv("PATH", "");
    const { path: socket } = await agentAddress(1);
    mkdirSync(socket);
    onTestFinished(() => void execFileSync("/bin/rm", ["-rf", socket]));
    const error = await agentAddress(0).catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(MosaicError);
    expect((error as Error).message).toMatch(
      `connect: the control-plane agent of this host did not start: agent at ${socket}: EISDIR: illegal operation on a directory`,
    );
  });
});
