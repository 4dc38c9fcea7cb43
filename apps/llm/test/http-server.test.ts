import { once } from "node:events";
import { request as httpRequest } from "node:http";
import { expect, test } from "vitest";
import { headers, model, post, readRefusal, server, setUpTestServers, startTestServer } from "./test-server.ts";

setUpTestServers();

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
  [{ messages: [] }, "messages", /"messages": unknown field; use \/v1\/chat\/completions$/],
  [{ prefix: "a" }, "prefix", /"prefix": unknown field$/],
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
  [{ messages: [{ role: "user", content: "a" }], prompt: "a" }, /"prompt": unknown field; use \/v1\/completions$/],
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
