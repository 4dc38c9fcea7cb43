import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { request as httpRequest, type Server } from "node:http";
import { type AddressInfo, connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, expect, test, vi } from "vitest";
import { Engine } from "../src/serve/engine.ts";
import { createHttpServer, type RequestRules } from "../src/serve/http-server.ts";
import { Channel, type RankMessage, type ServerMessage } from "../src/serve/messages.ts";
import { readServedModel, type ServedModel } from "../src/serve/served-model.ts";
import { writeServedFolder } from "./served-folder.ts";

const folder = mkdtempSync(join(tmpdir(), "llm-http-test-"));
const promptWorker = new URL("../dist/prompt-worker.js", import.meta.url);
let model: ServedModel;
beforeAll(async () => {
  await writeServedFolder(join(folder, "tiny"));
  model = await readServedModel(join(folder, "tiny"), { cacheTokens: 1024, promptWorker });
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

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

let server: TestServer;
afterEach(() => server.close());

async function startTestServer(...args: ConstructorParameters<typeof TestServer>): Promise<TestServer> {
  server = new TestServer(...args);
  await server.listen();
  return server;
}

const headers = { "content-type": "application/json" };
const post = (body: object, init: RequestInit = {}, path = "/v1/completions"): Promise<Response> =>
  fetch(server.url + path, { method: "POST", headers, body: JSON.stringify({ model: "tiny", ...body }), ...init });

async function readRefusal(response: Response): Promise<readonly [number, string | null, string | null]> {
  const { error } = (await response.json()) as { readonly error: { code: string | null; param: string | null } };
  return [response.status, error.code, error.param];
}

test.each([
  [{ n: 2 }, "n", /n: expected 1, received 2/],
  [{ logprobs: 3 }, "logprobs", /logprobs: expected false, received 3/],
  [{ echo: true }, "echo", /echo: expected false, received true/],
  [{ presence_penalty: 0.5 }, "presence_penalty", /expected 0, received 0.5; use repetition_penalty/],
  [{ temperature: 3 }, "temperature", /temperature: expected a number ≥ 0 and ≤ 2, received 3/],
  [{ temperature: "1" }, "temperature", /expected a number ≥ 0 and ≤ 2, received "1"/],
  [{ top_p: 0 }, "top_p", /top_p: expected a number > 0 and ≤ 1, received 0/],
  [{ seed: 0.5 }, "seed", /seed: expected an integer ≥ 0, received 0.5/],
  [{ stop: ["a", ""] }, "stop", /stop: expected a non-empty string, or an array of at most 4/],
  [{ stop: ["a", "b", "c", "d", "e"] }, "stop", /at most 4 non-empty strings/],
  [{ max_tokens: 0 }, "max_tokens", /max_tokens: expected an integer ≥ 1, received 0/],
  [{ max_completion_tokens: 0 }, "max_completion_tokens", /max_completion_tokens: expected an integer ≥ 1, received 0/],
  [{ stream_options: true }, "stream_options", /stream_options: expected an object, received true/],
  [
    { stream: true, stream_options: { include_usage: "yes" } },
    "stream_options",
    /stream_options.include_usage: expected true or false, received "yes"/,
  ],
  [
    { stream_options: { include_usage: true } },
    "stream_options",
    /stream_options.include_usage: expected false without stream, received true/,
  ],
  [{ repetition_penalty: 1e-300 }, "repetition_penalty", /expected a number ≥ 0.01 and ≤ 100, received 1e-300/],
  [{ stream_options: { include_usge: true } }, "stream_options", /stream_options: "include_usge": unknown field/],
  [
    { max_tokens: 1000 },
    "prompt",
    /the maximum context length is 128 tokens; the prompt has \d+ tokens, and 1000 more were requested/,
  ],
  [
    { prompt: Array.from({ length: 128 }, () => 5) },
    "prompt",
    /the prompt has 128 tokens, and at least 1 more is required/,
  ],
  [{ prompt: ["a", "b"] }, "prompt", /prompt: expected a string, an array of token ids, or an array of one of these/],
  [{ prompt: [300] }, "prompt", /ids below 300; received 300/],
  [{ prompt: null }, "prompt", /prompt: expected a string, or an array of token ids, received none/],
  [{ stream: "yes" }, "stream", /stream: expected true or false/],
  [{ messages: [] }, "messages", /"messages": unknown field/],
  [{ prefix: "a" }, "prefix", /"prefix": unknown field/],
])("%j is refused with 400", async (body, param, message) => {
  await startTestServer();
  const response = await post({ prompt: "In the", ...body });
  const { error } = (await response.json()) as { readonly error: { message: string; type: string; param: string } };
  expect([response.status, error.type, error.param]).toEqual([400, "invalid_request_error", param]);
  expect(error.message).toMatch(message);
  expect(server.sentMessages).toEqual([]);
});

test.each([
  [{}, /messages: expected a non-empty array of messages, received none/],
  [{ messages: [] }, /expected a non-empty array of messages/],
  [{ messages: [{ role: "user" }] }, /messages\[0\].content: expected a string, or parts of the type "text"/],
  [{ messages: [{ content: "a" }] }, /messages\[0\]: expected \{ role, content \}/],
  [{ messages: [{ role: "user", content: "a", name: "b" }] }, /messages\[0\]: "name": unknown field/],
  [{ messages: [{ role: "assistant", content: "a", tool_calls: [{}] }] }, /messages\[0\]: "tool_calls": unknown field/],
  [
    { messages: [{ role: "user", content: [{ type: "text", text: "a", lang: "b" }] }] },
    /messages\[0\].content\[0\]: "lang": unknown field/,
  ],
  [{ messages: [{ role: "user", content: "a" }], tools: [{}] }, /tools: expected an empty array/],
  [{ messages: [{ role: "user", content: "a" }], prompt: "a" }, /"prompt": unknown field/],
])("the conversation %j is refused with 400", async (body, message) => {
  await startTestServer();
  const response = await post(body, {}, "/v1/chat/completions");
  expect(response.status).toBe(400);
  expect(((await response.json()) as { error: { message: string } }).error.message).toMatch(message);
});

test("fields with their only accepted value, or null, are ignored", async () => {
  await startTestServer();
  const ignoredFields = {
    n: 1,
    best_of: null,
    echo: false,
    logit_bias: {},
    presence_penalty: 0,
    user: "u",
    stop: null,
  };
  const response = post({ prompt: "In the", max_tokens: 3, seed: 4, temperature: 0.5, top_k: 3, ...ignoredFields });
  await server.waitForMessages(1);
  const tokens = model.tokenizer.encode("In the");
  expect(server.sentMessages).toEqual([
    {
      ...{ type: "generate", id: 0 },
      options: { tokens, maxNewTokens: 3, seed: 4, stopStrings: [], doSample: true, temperature: 0.5, topK: 3 },
    },
  ]);
  server.reply(0, " be");
  server.reply(0, "ginning", "length");
  expect(await (await response).json()).toMatchObject({
    choices: [{ text: " beginning", finish_reason: "length" }],
    usage: { prompt_tokens: tokens.length, completion_tokens: 2, total_tokens: tokens.length + 2 },
  });
});

test("max_completion_tokens limits the new tokens of completions, and overrides max_tokens", async () => {
  await startTestServer();
  const requests = [
    { prompt: "In the", max_completion_tokens: 7, stream_options: { include_usage: null } },
    { prompt: "In the", max_completion_tokens: 8, max_tokens: 3 },
  ];
  for (const [id, request] of requests.entries()) {
    const response = post(request);
    await server.waitForMessages(id + 1);
    server.reply(id, "a", "stop");
    expect((await response).status).toBe(200);
  }
  expect(server.sentMessages).toMatchObject([{ options: { maxNewTokens: 7 } }, { options: { maxNewTokens: 8 } }]);
});

test("an assistant message with empty fields, such as an earlier answer, is accepted", async () => {
  await startTestServer();
  const answer = { role: "assistant", content: "b", refusal: null, tool_calls: [], annotations: [] };
  const messages = [{ role: "user", content: "a" }, answer, { role: "user", content: "c" }];
  const response = post({ messages }, {}, "/v1/chat/completions");
  await server.waitForMessages(1);
  server.reply(0, "d", "stop");
  expect((await response).status).toBe(200);
});

test("unknown models and URLs, wrong methods, large bodies and invalid JSON have their own status and code", async () => {
  await startTestServer();
  expect(await readRefusal(await post({ prompt: "a", model: "other" }))).toEqual([404, "model_not_found", "model"]);
  expect(await readRefusal(await fetch(`${server.url}/v1/models/other`))).toEqual([404, "model_not_found", "model"]);
  expect(await readRefusal(await fetch(`${server.url}/v2`))).toEqual([404, "unknown_url", null]);
  const wrongMethod = await fetch(`${server.url}/v1/completions`);
  expect(wrongMethod.headers.get("allow")).toBe("POST");
  expect(await readRefusal(wrongMethod)).toEqual([405, "method_not_allowed", null]);
  expect(await readRefusal(await post({ prompt: "a".repeat(3000) }))).toEqual([413, "body_too_large", null]);
  expect((await post({ prompt: "a" }, { headers: { "content-type": "text/plain" } })).status).toBe(415);
  expect(await readRefusal(await post({}, { body: "{" }))).toEqual([400, "invalid_json", null]);
  expect(await readRefusal(await post({}, { body: "[]" }))).toEqual([400, "invalid_json", null]);
});

test("HEAD has the status and the headers of GET, without a body", async () => {
  await startTestServer({ key: "right" });
  const page = await fetch(server.url, { method: "HEAD" });
  expect([page.status, page.headers.get("content-type")]).toEqual([200, "text/html; charset=utf-8"]);
  const init = { headers: { authorization: "Bearer right" } };
  const list = await fetch(`${server.url}/v1/models`, { ...init, method: "HEAD" });
  const { length } = await (await fetch(`${server.url}/v1/models`, init)).text();
  expect([list.status, list.headers.get("content-length"), await list.text()]).toEqual([200, String(length), ""]);
  expect((await fetch(`${server.url}/v1/models`, { method: "HEAD" })).status).toBe(401);
  const refused = await fetch(`${server.url}/v1/models`, { ...init, method: "DELETE" });
  expect([refused.status, refused.headers.get("allow")]).toEqual([405, "GET, HEAD"]);
});

test("a path may have a query, percent-encoded characters and an origin", async () => {
  await startTestServer();
  for (const path of ["tiny", "tiny?x=1", "t%69ny"]) {
    expect(await (await fetch(`${server.url}/v1/models/${path}`)).json()).toMatchObject({ id: "tiny" });
  }
  expect(await readRefusal(await fetch(`${server.url}/v1/models/%zz`))).toEqual([404, "model_not_found", "model"]);
  // A request through a proxy has an absolute URL. `fetch` cannot send one.
  const request = httpRequest(server.url, { path: `${server.url}/v1/models` }).end();
  const [response] = (await once(request, "response")) as [{ statusCode: number; resume(): void }];
  response.resume();
  expect(response.statusCode).toBe(200);
});

test("a body that is not UTF-8 is refused with 400, and a byte order mark is ignored", async () => {
  await startTestServer();
  const body = (text: Uint8Array) => ({ body: Buffer.concat([Buffer.from('{"model":"tiny","prompt":"'), text]) });
  const invalidBody = body(Buffer.from([0xff, 0x22, 0x7d]));
  expect(await readRefusal(await post({}, invalidBody))).toEqual([400, "invalid_json", null]);
  expect(server.sentMessages).toEqual([]);
  const response = post({}, { body: `\uFEFF${JSON.stringify({ model: "tiny", prompt: "a" })}` });
  await server.waitForMessages(1);
  server.reply(0, "x", "stop");
  expect((await response).status).toBe(200);
});

test.each(["model", "prompt", "stop"])("a deeply nested array as %s is refused with 400", async (name) => {
  await startTestServer({ maxBodyBytes: 2 ** 20 });
  const nestedArray = "[".repeat(100_000) + "]".repeat(100_000);
  const fields = { model: '"tiny"', prompt: '"a"', [name]: nestedArray };
  const body = `{${Object.entries(fields).map(([key, value]) => `"${key}":${value}`)}}`;
  const response = await post({}, { body });
  const { error } = (await response.json()) as { readonly error: { message: string; param: string } };
  expect([response.status, error.param]).toEqual([400, name]);
  expect(error.message).toMatch(/received a deeply nested array/);
});

test("/health gives 503 if rank 0 does not respond", async () => {
  await startTestServer({}, { maxRunning: 2, maxWaiting: 1, statsTimeoutMs: 20 });
  const response = await fetch(`${server.url}/health`);
  expect([response.status, await response.json()]).toMatchObject([503, { status: "unavailable", ranks: null }]);
  // A late response has no effect.
  const { id } = server.sentMessages[0] as { readonly id: number };
  const stats = { running: 0, waiting: 0, freeTokens: 1, maxTokens: 1, allocated: 0 };
  server.engine.receive({ type: "stats", id, stats });
  const nextResponse = fetch(`${server.url}/health`);
  await server.waitForMessages(2);
  server.engine.receive({ type: "stats", id: (server.sentMessages[1] as { readonly id: number }).id, stats });
  expect((await nextResponse).status).toBe(200);
});

test("requests from pages of other origins are refused, those from this server's page are not", async () => {
  await startTestServer();
  const postFromOrigin = (value: string) => post({ prompt: "a", n: 2 }, { headers: { ...headers, origin: value } });
  expect(await readRefusal(await postFromOrigin("https://example.org"))).toEqual([403, "foreign_origin", null]);
  expect(await readRefusal(await postFromOrigin("null"))).toEqual([403, "foreign_origin", null]);
  expect((await postFromOrigin(server.url)).status).toBe(400);
  // A foreign name that resolves to this address. `fetch` would set the Host header itself.
  const request = httpRequest(`${server.url}/health`, { headers: { host: "attacker.example:80" } }).end();
  const [response] = (await once(request, "response")) as [{ statusCode: number; resume(): void }];
  response.resume();
  expect(response.statusCode).toBe(403);
});

test("all paths except the page require the key", async () => {
  await startTestServer({ key: "right" });
  const getWithKey = (path: string, key?: string) =>
    fetch(server.url + path, key === undefined ? {} : { headers: { authorization: `Bearer ${key}` } });
  expect((await getWithKey("/")).status).toBe(200);
  for (const path of ["/v1/models", "/health"]) {
    const response = await getWithKey(path);
    expect(response.headers.get("www-authenticate")).toBe("Bearer");
    expect(await readRefusal(response)).toEqual([401, "invalid_api_key", null]);
  }
  expect((await getWithKey("/v1/models", "wrong")).status).toBe(401);
  expect((await getWithKey("/v1/models", "right")).status).toBe(200);
});

test("a full queue gives 429, and waiting requests run when others end", async () => {
  await startTestServer();
  const acceptedResponses = ["a", "b", "c"].map((prompt) => post({ prompt }));
  await server.waitForMessages(2);
  await waitForQueueLength(1);
  const refusedResponse = await post({ prompt: "d" });
  expect(refusedResponse.headers.get("retry-after")).toBe("1");
  expect(await readRefusal(refusedResponse)).toEqual([429, "queue_full", null]);
  server.reply(0, "x", "stop");
  await server.waitForMessages(3);
  expect(server.sentMessages.map((message) => message.type)).toEqual(["generate", "generate", "generate"]);
  for (const id of [1, 2]) server.reply(id, "x", "stop");
  for (const answer of acceptedResponses) expect((await answer).status).toBe(200);
  expect([server.engine.numRunning, server.engine.numWaiting]).toEqual([0, 0]);
});

async function waitForQueueLength(count: number): Promise<void> {
  while (server.engine.numWaiting !== count) await new Promise((resolve) => setImmediate(resolve));
}

test("a client that disconnects cancels its running or waiting request", async () => {
  await startTestServer({}, { maxRunning: 1, maxWaiting: 1 });
  const [firstController, secondController] = [new AbortController(), new AbortController()];
  const streamedResponse = post({ prompt: "a", stream: true }, { signal: firstController.signal });
  await server.waitForMessages(1);
  server.reply(0, "x");
  await (await streamedResponse).body!.getReader().read();
  const waitingResponse = post({ prompt: "b" }, { signal: secondController.signal });
  await waitForQueueLength(1);
  secondController.abort();
  await expect(waitingResponse).rejects.toThrow(/abort/);
  await waitForQueueLength(0);
  firstController.abort();
  await server.waitForMessages(2);
  expect(server.sentMessages[1]).toEqual({ type: "cancel", id: 0 });
  expect(server.engine.numRunning).toBe(0);
  // A token that was in flight has no effect.
  server.reply(0, "y", "stop");
});

test("a request that exceeds its deadline gets 504 and is cancelled", async () => {
  await startTestServer({ deadlineMs: 1 });
  expect(await readRefusal(await post({ prompt: "a" }))).toEqual([504, "deadline_exceeded", null]);
  expect(server.sentMessages.map((message) => message.type)).toEqual(["generate", "cancel"]);
});

test("requests that run on lost ranks get 503, and waiting requests run on the next ranks", async () => {
  await startTestServer();
  const wholeResponse = post({ prompt: "a" });
  await server.waitForMessages(1);
  const streamedResponse = post({ prompt: "b", stream: true });
  await server.waitForMessages(2);
  server.reply(1, "x");
  const { body } = await streamedResponse;
  const waitingResponse = post({ prompt: "c" });
  await waitForQueueLength(1);
  server.engine.detach("rank 1 was lost");
  expect(await readRefusal(await wholeResponse)).toEqual([503, "service_unavailable", null]);
  const text = await new Response(body).text();
  expect(text).toMatch(/"error":\{"message":"rank 1 was lost","type":"server_error"/);
  expect(text).not.toContain("[DONE]");
  expect((await post({ prompt: "d" })).status).toBe(503);
  expect((await fetch(`${server.url}/health`)).status).toBe(503);
  server.attach();
  await server.waitForMessages(3);
  server.reply(2, "x", "stop");
  expect((await waitingResponse).status).toBe(200);
});

test("a request that the ranks refuse gets 400, and one that fails on them gets 500", async () => {
  await startTestServer();
  for (const [id, isRefused] of [true, false].entries()) {
    const response = post({ prompt: "a" });
    await server.waitForMessages(id + 1);
    server.engine.receive({ type: "failed", id, message: "why", isRefused });
    expect((await response).status).toBe(isRefused ? 400 : 500);
  }
});

test("stopping refuses new and waiting requests with 503, and completes running ones", async () => {
  await startTestServer({}, { maxRunning: 1, maxWaiting: 1 });
  const runningResponse = post({ prompt: "a" });
  await server.waitForMessages(1);
  const waitingResponse = post({ prompt: "b" });
  await waitForQueueLength(1);
  const stopPromise = server.engine.stop();
  expect((await waitingResponse).status).toBe(503);
  expect((await post({ prompt: "c" })).status).toBe(503);
  server.reply(0, "x", "stop");
  expect((await runningResponse).status).toBe(200);
  expect(await stopPromise).toBe(true);
  expect(server.sentMessages.at(-1)).toEqual({ type: "stop" });
});

test("a request that is running when the ranks are stopped gets 503 with the reason", async () => {
  await startTestServer();
  const response = post({ prompt: "a" });
  await server.waitForMessages(1);
  const stopPromise = server.engine.stop();
  server.engine.detach("rank 0 was lost; restarting all ranks");
  expect(await stopPromise).toBe(false);
  const { status, body } = await response;
  expect([status, await new Response(body).json()]).toMatchObject([
    503,
    { error: { message: "the server is shutting down" } },
  ]);
});

const longText = "In the beginning was the Word. ".repeat(7000);

test("requests are answered while a long prompt is encoded, and while others wait", async () => {
  const encode = vi.spyOn(model.tokenizer, "encode");
  try {
    await startTestServer({ maxBodyBytes: 1e6 }, { maxRunning: 2, maxWaiting: 1 }, { ...model, maxLength: 1e9 });
    const responses = [1, 2].map((seed) => post({ prompt: longText, seed }));
    let numAnswered = 0;
    while (server.sentMessages.length === 0) {
      expect((await fetch(`${server.url}/v1/models`)).status).toBe(200);
      if (server.sentMessages.length === 0) numAnswered++;
    }
    // If the prompt were encoded in this thread, only a request that arrived before it could be answered.
    expect(numAnswered).toBeGreaterThan(5);
    await server.waitForMessages(2);
    expect(encode).not.toHaveBeenCalled();
    const expectedTokens = model.tokenizer.encode(longText);
    for (const message of server.sentMessages) {
      if (message.type !== "generate") throw new Error(`expected a generate message, received ${message.type}`);
      expect(message.options.tokens).toEqual(expectedTokens);
      server.reply(message.id, "x", "stop");
    }
    for (const response of responses) expect((await response).status).toBe(200);
  } finally {
    encode.mockRestore();
  }
});

test.each(["prompt", "messages"])(
  "%s: a text that is certainly too long is rejected before it is encoded",
  async (field) => {
    const encodings = [vi.spyOn(model.tokenizer, "encode"), vi.spyOn(model.encoder, "encode")];
    try {
      await startTestServer({ maxBodyBytes: 1e6 });
      const body = field === "prompt" ? { prompt: longText } : { messages: [{ role: "user", content: longText }] };
      const response = await post(body, {}, field === "prompt" ? "/v1/completions" : "/v1/chat/completions");
      expect(await readRefusal(response.clone())).toEqual([400, "context_length_exceeded", field]);
      expect(await response.text()).toMatch(
        /context length is 128 tokens; the prompt has at least \d+ tokens, and at least 1/,
      );
      for (const encode of encodings) expect(encode).not.toHaveBeenCalled();
    } finally {
      for (const encode of encodings) encode.mockRestore();
    }
  },
);

test("a client that sends a body beyond the limit completely before it reads receives 413", async () => {
  await startTestServer();
  const [{ port }, body] = [new URL(server.url), "a".repeat(2 ** 23)];
  const socket = connect(Number(port), "127.0.0.1").pause();
  const head = `POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: ${headers["content-type"]}`;
  const message = `${head}\r\nConnection: close\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
  await new Promise((resolve, reject) => socket.on("error", reject).write(message, resolve));
  expect(String((await socket.toArray())[0])).toMatch(/^HTTP\/1.1 413 /);
});

test("without a queue, a request runs if there is capacity, and otherwise gets 429", async () => {
  await startTestServer({}, { maxRunning: 1, maxWaiting: 0 });
  const runningResponse = post({ prompt: "a" });
  await server.waitForMessages(1);
  expect(await readRefusal(await post({ prompt: "b" }))).toEqual([429, "queue_full", null]);
  server.reply(0, "x", "stop");
  expect((await runningResponse).status).toBe(200);
});

test("ranks that attach to a server that is stopping are stopped", async () => {
  await startTestServer();
  server.engine.detach("rank 0 was lost");
  expect(await server.engine.stop()).toBe(false);
  server.attach();
  expect(server.sentMessages).toEqual([{ type: "stop" }]);
});

test("the timer of the deadline is cleared at the end of the request, so that the process can exit", async () => {
  const deadlineMs = 54_321;
  await startTestServer({ deadlineMs });
  const [setTimer, clearTimer] = [vi.spyOn(globalThis, "setTimeout"), vi.spyOn(globalThis, "clearTimeout")];
  const response = post({ prompt: "a" });
  await server.waitForMessages(1);
  server.reply(0, "x", "stop");
  expect((await response).status).toBe(200);
  const index = setTimer.mock.calls.findIndex(([, delay]) => delay === deadlineMs);
  expect(clearTimer).toHaveBeenCalledWith(setTimer.mock.results[index]!.value);
  vi.restoreAllMocks();
});

test("if the ranks are lost, /health gives 503 before the timeout of their statistics", async () => {
  await startTestServer({}, { maxRunning: 1, maxWaiting: 1, statsTimeoutMs: 2 ** 30 });
  const response = fetch(`${server.url}/health`);
  await server.waitForMessages(1);
  server.engine.detach("rank 0 was lost");
  expect((await response).status).toBe(503);
});

test("waiting requests get 503 with the reason if the ranks are not restarted", async () => {
  await startTestServer({}, { maxRunning: 1, maxWaiting: 1 });
  const responses = ["a", "b"].map((prompt) => post({ prompt }));
  await server.waitForMessages(1);
  await waitForQueueLength(1);
  server.engine.fail("the ranks have exited");
  for (const response of responses) {
    const { status, body } = await response;
    expect([status, await new Response(body).text()]).toEqual([503, expect.stringContaining("the ranks have exited")]);
  }
});

test("a stream contains no event for a piece without text, except for the last piece", async () => {
  await startTestServer();
  const response = post({ prompt: "a", stream: true });
  await server.waitForMessages(1);
  for (const text of ["", "x", ""]) server.reply(0, text);
  server.reply(0, "", "length");
  const events = (await (await response).text()).split("\n\n").filter((event) => event.startsWith("data: {"));
  const choices = events.map((event) => (JSON.parse(event.slice("data: ".length)) as { choices: object[] }).choices[0]);
  expect(choices).toMatchObject([
    { text: "x", finish_reason: null },
    { text: "", finish_reason: "length" },
  ]);
});
