import { connect } from "node:net";
import { expect, test, vi } from "vitest";
import { PromptEncoder } from "../src/serve/prompt-encoder.ts";
import {
  headers,
  model,
  post,
  readRefusal,
  server,
  setUpTestServers,
  startTestServer,
  waitForQueueLength,
} from "./test-server.ts";

setUpTestServers();

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

test("requests whose prompts are being encoded or wait get 504 when their deadline has passed", async () => {
  const workerEntry = new URL("data:text/javascript,setInterval(() => {}, 60_000)"); // never responds
  const encoder = new PromptEncoder(model.tokenizer, { folder: "", workerEntry, maxWaiting: 1 });
  const limits = { maxBodyBytes: 1e6, deadlineMs: 100 };
  await startTestServer(limits, { maxRunning: 2, maxWaiting: 1 }, { ...model, encoder, maxLength: 1e9 });
  const responses = [1, 2].map((seed) => post({ prompt: longText, seed }));
  for (const response of responses) {
    const { status, body } = await response;
    expect([status, await new Response(body).json()]).toMatchObject([
      504,
      { error: { message: "the request timed out after 0.1 s", code: "deadline_exceeded" } },
    ]);
  }
  expect(server.sentMessages).toEqual([]);
});

test("the deadline includes the time in which the prompt is encoded", async () => {
  const encode = async (): Promise<readonly number[]> => {
    await new Promise((resolve) => setTimeout(resolve, 300));
    return [1];
  };
  const encoder = { encode } as unknown as PromptEncoder;
  await startTestServer({ deadlineMs: 200 }, undefined, { ...model, encoder });
  expect(await readRefusal(await post({ prompt: "a" }))).toEqual([504, "deadline_exceeded", null]);
  expect(server.sentMessages).toEqual([]);
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
