import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync } from "node:fs";
import { connect, createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { connect as rawTls } from "node:tls";
import { describe, expect, it, onTestFinished, vi } from "vitest";
import { Agent } from "../../src/agent/agent.ts";
import { HandshakeError, listeningPort, type Network } from "../../src/agent/network.ts";
import { connectTls, tlsNetwork, TLS_PROTOCOLS, TlsServer } from "../../src/agent/tls.ts";
import { connectStore } from "../../src/store/client.ts";
import { StoreServer } from "../../src/store/server.ts";
import { program, waitUntil } from "../harness.ts";

/** Number of corrupted handshakes. */
const HANDSHAKES = Number(process.env.MOSAIC_TEST_HANDSHAKES ?? 300);
const AT_ONCE = 32;
const GROWTH_MB = 48;

const createSecret = (): string => randomBytes(32).toString("hex");

async function startServer(secret: string): Promise<{ server: TlsServer; refused: string[] }> {
  const refused: string[] = [];
  const server = await TlsServer.listen({
    secret,
    onRefused: (address, reason) => refused.push(`${address} ${reason}`),
  });
  onTestFinished(() => server.close());
  server.serve(TLS_PROTOCOLS.agent, (socket) => socket.pipe(socket));
  return { server, refused };
}

const options = (secret: string): Parameters<typeof connectTls>[1] => ({ secret, protocol: TLS_PROTOCOLS.agent });

describe("TLS with a pre-shared key", () => {
  it("encrypts with ChaCha20-Poly1305 when both peers have the secret", async () => {
    const secret = createSecret();
    const { server, refused } = await startServer(secret);
    const socket = await connectTls(server.address, options(secret));
    expect([socket.getCipher().name, socket.getProtocol()]).toEqual(["ECDHE-PSK-CHACHA20-POLY1305", "TLSv1.2"]);
    socket.write("payload");
    expect(String((await once(socket, "data"))[0])).toBe("payload");
    socket.destroy();
    expect(refused).toEqual([]);
    expect(server.handshakes).toBe(0);
  });

  it("rejects different secrets with an error on both sides that contains neither secret", async () => {
    const [secret, otherSecret] = [createSecret(), createSecret()];
    const { server, refused } = await startServer(secret);
    const error = await connectTls(server.address, options(otherSecret)).catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(HandshakeError);
    expect(error).toMatchObject({
      reason: "secret",
      message: expect.stringMatching(/the shared secrets do not match; set the same MOSAIC_TOKEN/),
    });
    expect(refused).toEqual(["127.0.0.1 the shared secrets do not match"]);
    for (const text of [String((error as Error).stack), ...refused])
      for (const hidden of [secret, otherSecret]) expect(text).not.toContain(hidden);
  });

  it("rejects peers that use plain HTTP, TLS with certificates or a protocol that is not served", async () => {
    const secret = createSecret();
    const { server, refused } = await startServer(secret);
    const plainSocket = connect(server.port, "127.0.0.1");
    plainSocket.on("error", () => {}).end("GET / HTTP/1.0\r\n\r\n");
    await once(plainSocket.resume(), "close");
    const browserSocket = rawTls({ port: server.port, host: "127.0.0.1", rejectUnauthorized: false });
    await expect(once(browserSocket, "secureConnect")).rejects.toThrow(
      /handshake failure|protocol version|disconnected before secure/,
    );
    expect(refused).toHaveLength(2);
    // No store is served here, so even a client with the secret receives no reply.
    const store = await connectTls(server.address, { secret, protocol: TLS_PROTOCOLS.store });
    await once(store.resume(), "close");
    const http = createServer((socket) => socket.on("error", () => {}).end("HTTP/1.1 400 Bad Request\r\n\r\n"));
    http.listen(0, "127.0.0.1");
    await once(http, "listening");
    onTestFinished(() => void http.close());
    await expect(connectTls(`127.0.0.1:${listeningPort(http)}`, options(secret))).rejects.toThrow(
      /the TLS handshake failed .*; check that the same version of Mosaic is listening/,
    );
  });

  it("ends a connection without a handshake after 5 s", { timeout: 10_000 }, async () => {
    const { server, refused } = await startServer(createSecret());
    const silentSocket = connect(server.port, "127.0.0.1");
    await waitUntil(
      () => server.handshakes === 1,
      () => "no handshake",
    );
    const startTime = performance.now();
    await once(silentSocket.resume(), "close");
    expect(performance.now() - startTime).toBeGreaterThan(4500);
    expect(refused).toEqual(["127.0.0.1 no TLS handshake within 5 s"]);
    await waitUntil(
      () => server.handshakes === 0,
      () => "the handshake is still counted",
    );
  });

  it("carries the control plane between agents, and refuses an agent with a different secret", async () => {
    const secret = createSecret();
    const directory = mkdtempSync(join(tmpdir(), "tls-"));
    const createAgentOptions = (name: string, network: Network): Parameters<typeof Agent.listen>[0] => ({
      ...{ path: join(directory, name), secret, network, host: name },
    });
    const root = await Agent.listen({ ...createAgentOptions("n0", tlsNetwork({ secret })), children: true });
    onTestFinished(() => root.close());
    const joinOptions = { root: root.address as string, children: false };
    const child = await Agent.listen({ ...createAgentOptions("n1", tlsNetwork({ secret })), ...joinOptions, index: 1 });
    onTestFinished(() => child.close());
    await waitUntil(
      () => root.connections === 1 && root.hasConnections,
      () => "the child agent is not connected",
    );
    const foreignAgent = await Agent.listen({
      ...createAgentOptions("n2", tlsNetwork({ secret: createSecret() })),
      ...joinOptions,
      index: 2,
    });
    onTestFinished(() => foreignAgent.close());
    const rank = connect({ path: foreignAgent.path });
    const { encode, MAGIC, PROTOCOL_VERSION } = await import("../../src/agent/frames.ts");
    const identity = { magic: MAGIC, version: PROTOCOL_VERSION, secret, role: 0, agent: 0, host: "", address: "" };
    rank.write(encode({ kind: "hello", ...identity }));
    const world = { world: 0, name: "w", attempt: 0, size: 2, timeoutMs: 9000, remainingMs: 9000, hosts: [] };
    rank.write(encode({ kind: "join", ...world, members: [{ rank: 0, pid: 1, host: 0 }] }));
    expect(String((await once(rank, "data"))[0])).toMatch(/refused: the shared secrets do not match/);
    rank.destroy();
  });

  it("carries the store, and rejects clients with a different secret or run ID", async () => {
    const token = createSecret();
    const server = await TlsServer.listen({ secret: token });
    onTestFinished(() => server.close());
    await using store = StoreServer.share({ runId: "r", server, token });
    expect(store.address).toBe(`tls://127.0.0.1:${server.port}`);
    await using client = await connectStore({ address: store.address, token, runId: "r", attempt: 0 });
    await client.set("k", "v");
    expect(String(await client.get("k"))).toBe("v");
    const wrongOptions = { address: store.address, token: createSecret(), runId: "r", attempt: 0 };
    await expect(connectStore(wrongOptions)).rejects.toMatchObject({
      code: "AUTH",
      message: expect.stringMatching(/shared secrets do not match/),
    });
    await expect(connectStore({ ...wrongOptions, token, runId: "x" })).rejects.toMatchObject({ code: "MISMATCH" });
  });
});

/**
 * Starts a proxy to `port` that corrupts the client's bytes at a different offset in each connection: it changes one
 * byte, overwrites the following ones, inserts random bytes, or truncates the stream.
 */
async function corruptingProxy(port: number): Promise<Server> {
  let connections = 0;
  const server = createServer((client) => {
    const upstream = connect(port, "127.0.0.1");
    const seed = connections++;
    const [corruptOffset, kind, mask] = [seed % 330, seed % 4, 1 + (seed % 255)];
    let passedBytes = 0;
    client.on("data", (chunk: Buffer) => {
      const index = corruptOffset - passedBytes;
      passedBytes += chunk.length;
      if (index < 0 || index >= chunk.length) upstream.write(chunk);
      else if (kind === 0) upstream.write(chunk.map((byte, i) => (i === index ? byte ^ mask : byte)));
      else if (kind === 1) upstream.write(chunk.fill(mask, index));
      else if (kind === 2)
        upstream.write(Buffer.concat([chunk.subarray(0, index), randomBytes(mask * 64), chunk.subarray(index)]));
      else upstream.end(chunk.subarray(0, index));
    });
    const end = (): void => {
      client.destroy();
      upstream.destroy();
    };
    upstream.on("data", (chunk) => client.write(chunk));
    for (const socket of [client, upstream] as Socket[]) socket.on("error", end).on("close", end);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return server;
}

describe(`${HANDSHAKES} corrupted handshakes`, () => {
  it("are rejected without a reply, a crash or memory growth of the server", {
    timeout: 120_000 + 60 * HANDSHAKES,
  }, async () => {
    const secret = createSecret();
    const env = { ...process.env, TEST_SECRET: secret };
    const child = spawn(process.execPath, ["--expose-gc", program("tls-server.mjs")], { env });
    onTestFinished(() => void child.kill("SIGKILL"));
    let refusals = "";
    child.stderr.on("data", (text) => (refusals += text));
    const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
    const nextLine = async (): Promise<string> => (await lines.next()).value as string;
    const address = await nextLine();
    const state = async (): Promise<number[]> => {
      child.stdin.write("\n");
      return (await nextLine()).split(" ").map(Number);
    };
    const proxy = await corruptingProxy(Number(address.split(":")[1]));
    onTestFinished(() => void proxy.close());
    let left = 0;
    const runAttack = async (): Promise<void> => {
      while (left-- > 0) {
        const attempt = connectTls(`127.0.0.1:${listeningPort(proxy)}`, options(secret));
        // If the corruption is after the handshake, the connection ends at the first record.
        const answer = await attempt.then(
          async (socket) => {
            socket.end("payload that is damaged on its way".repeat(10));
            const chunks: Buffer[] = [];
            socket.on("data", (chunk) => chunks.push(chunk));
            await once(socket, "close");
            return Buffer.concat(chunks).length;
          },
          () => 0,
        );
        expect(answer).toBe(0);
      }
    };
    const openConnections = async (count: number): Promise<void> => {
      left = count;
      await Promise.all(Array.from({ length: AT_ONCE }, runAttack));
    };
    await openConnections(HANDSHAKES / 2);
    const [, memoryBefore = 0] = await state();
    await openConnections(HANDSHAKES);
    const [, memoryAfter = 0] = await state();
    await vi.waitFor(async () => expect((await state())[0]).toBe(0), { timeout: 10_000 });
    expect(memoryAfter - memoryBefore).toBeLessThan(GROWTH_MB);
    expect(refusals.split("\n").length).toBeGreaterThan(HANDSHAKES / 2);
    expect(refusals).not.toContain(secret);
    const honestClient = await connectTls(address, options(secret));
    honestClient.destroy();
    expect(child.exitCode).toBe(null);
  });
});
