import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import type { Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll } from "vitest";
import { Engine } from "../src/serve/engine.ts";
import { createHttpServer, type RequestRules } from "../src/serve/http-server.ts";
import type { Channel, RankMessage, ServerMessage } from "../src/serve/messages.ts";
import { readServedModel, type ServedModel } from "../src/serve/served-model.ts";
import { writeServedFolder } from "./served-folder.ts";

// The server of each test of a file, whose ranks are simulated by the test.

export const promptWorker = new URL("../dist/prompt-worker.js", import.meta.url);
export let model: ServedModel;

/** Writes a tiny model before the tests of a file, and closes the server of each test. */
export function setUpTestServers(): void {
  const folder = mkdtempSync(join(tmpdir(), "llm-http-test-"));
  beforeAll(async () => {
    await writeServedFolder(join(folder, "tiny"));
    model = await readServedModel(join(folder, "tiny"), { cacheTokens: 1024, promptWorker, maxWaitingPrompts: 1 });
  });
  afterEach(() => server.close());
  afterAll(() => rmSync(folder, { recursive: true, force: true }));
}

/** A server whose ranks are simulated by this test. `sentMessages` are the messages that the ranks received. */
class TestServer {
  readonly engine: Engine;
  readonly sentMessages: ServerMessage[] = [];
  readonly #http: Server;
  #notifySent: () => void = () => {};

  constructor(
    limits: Partial<RequestRules> = {},
    sizes: ConstructorParameters<typeof Engine>[0] = { maxRunning: 2, maxWaiting: 1 },
    servedModel: ServedModel = model,
  ) {
    this.engine = new Engine(sizes);
    const page = readFileSync(new URL("../page/chat.html", import.meta.url), "utf8");
    const allLimits = { host: "127.0.0.1", key: "", maxBodyBytes: 2000, deadlineMs: 60_000, ...limits };
    this.#http = createHttpServer({ engine: this.engine, model: servedModel, page, rules: allLimits });
  }

  async listen(): Promise<void> {
    this.#http.listen(0, "127.0.0.1");
    await once(this.#http, "listening");
    this.attach();
  }

  attach(): void {
    const send = (message: ServerMessage): void => {
      this.sentMessages.push(message);
      this.#notifySent();
    };
    this.engine.attach({ send, close: () => {} } as unknown as Channel<ServerMessage, RankMessage>);
  }

  /** Resolves when the ranks have received `count` messages. */
  async waitForMessages(count: number): Promise<void> {
    while (this.sentMessages.length < count) await new Promise<void>((resolve) => (this.#notifySent = resolve));
  }

  /** Sends a piece of a text to the server. */
  reply(id: number, text: string, finishReason: "stop" | "length" | null = null): void {
    this.engine.receive({ type: "token", id, text, finishReason });
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#http.address() as AddressInfo).port}`;
  }

  close(): void {
    this.#http.close();
    this.#http.closeAllConnections();
  }
}

export let server: TestServer;

export async function startTestServer(...args: ConstructorParameters<typeof TestServer>): Promise<TestServer> {
  server = new TestServer(...args);
  await server.listen();
  return server;
}

export const headers = { "content-type": "application/json" };
export const post = (body: object, init: RequestInit = {}, path = "/v1/completions"): Promise<Response> =>
  fetch(server.url + path, { method: "POST", headers, body: JSON.stringify({ model: "tiny", ...body }), ...init });

export async function readRefusal(response: Response): Promise<readonly [number, string | null, string | null]> {
  const { error } = (await response.json()) as { readonly error: { code: string | null; param: string | null } };
  return [response.status, error.code, error.param];
}
export async function waitForQueueLength(count: number): Promise<void> {
  while (server.engine.numWaiting !== count) await new Promise((resolve) => setImmediate(resolve));
}
