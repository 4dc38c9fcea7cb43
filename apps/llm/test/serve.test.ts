import { once } from "node:events";
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { connect, Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { readEvents, runLoad, type StreamEvent } from "../src/serve/load-test.ts";
import { PromptEncoder } from "../src/serve/prompt-encoder.ts";
import { type RunningServer, serve } from "../src/serve/serve.ts";
import { parseServeSettings } from "../src/settings.ts";
import { writeServedFolder } from "./served-folder.ts";

const folder = mkdtempSync(join(tmpdir(), "llm-serve-test-"));
const model = "tiny";
const promptWorker = new URL("../dist/prompt-worker.js", import.meta.url);
afterAll(() => rmSync(folder, { recursive: true, force: true }));
beforeAll(() => writeServedFolder(join(folder, model)));

const pids = new Map<number, number>();
let onReady: () => void = () => {};
let server: RunningServer;

/** Resolves when ranks are ready the next time. */
const waitForReady = (): Promise<void> => new Promise((resolve) => (onReady = resolve));

const post = (path: string, body: object): Promise<Response> =>
  fetch(server.url + path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ model, ...body }),
  });

interface Health {
  readonly status: string;
  readonly running: number;
  readonly ranks: { readonly freeTokens: number; readonly maxTokens: number; readonly allocated: number };
}
const fetchHealth = async (): Promise<Health> => (await fetch(`${server.url}/health`)).json() as Promise<Health>;

/** Resolves when no request is running or waiting. Cancelled requests are removed with the next step. */
async function waitUntilIdle(): Promise<Health> {
  for (;;) {
    const currentHealth = await fetchHealth();
    if (currentHealth.running === 0 && currentHealth.ranks.freeTokens === currentHealth.ranks.maxTokens)
      return currentHealth;
  }
}

describe("a server on two ranks", () => {
  beforeAll(async () => {
    const readyPromise = waitForReady();
    const args = ["--model", join(folder, model), "--ranks", "2", "--port", "0", "--batch", "8"];
    server = await serve(parseServeSettings(args), {
      entry: new URL("../dist/rank.js", import.meta.url),
      promptWorker,
      page: new URL("../page/chat.html", import.meta.url),
      onReady: () => onReady(),
      launchOptions: {
        restartBackoffMs: 300,
        minUptimeMs: 0,
        onEvent: (event) => void (event.type === "spawn" && pids.set(event.rank, event.pid)),
      },
    });
    await Promise.race([readyPromise, server.completion]);
  });
  afterAll(async () => {
    server?.stop();
    await server?.completion;
  });

  test("describes its model, and serves a page", async () => {
    const list = (await (await fetch(`${server.url}/v1/models`)).json()) as { readonly data: readonly object[] };
    expect(list).toMatchObject({ object: "list", data: [{ id: model, max_model_len: 128, has_chat_template: true }] });
    expect(await (await fetch(`${server.url}/v1/models/${model}`)).json()).toEqual(list.data[0]);
    const page = await fetch(server.url);
    expect(page.headers.get("content-security-policy")).toMatch(/default-src 'none'.*script-src 'sha256-/);
    expect(await page.text()).toContain("<title>Mosaic");
  });

  test("completes texts, in one response and as a stream", async () => {
    const body = { prompt: "In the beginning", max_tokens: 20, seed: 5, temperature: 1 };
    const wholeResponse = (await (await post("/v1/completions", body)).json()) as {
      readonly choices: readonly { readonly text: string; readonly finish_reason: string }[];
      readonly usage: { readonly completion_tokens: number };
    };
    expect(wholeResponse).toMatchObject({ object: "text_completion", model, choices: [{ index: 0, logprobs: null }] });
    const [{ text, finish_reason: reason }] = wholeResponse.choices as [(typeof wholeResponse.choices)[0]];
    expect(text.length).toBeGreaterThan(0);
    const response = await post("/v1/completions", { ...body, stream: true, stream_options: { include_usage: true } });
    expect(response.headers.get("content-type")).toBe("text/event-stream");
    const events = [];
    for await (const event of readEvents(response)) events.push(event);
    expect(events.map(({ choices }) => choices![0]?.text ?? "").join("")).toBe(text);
    expect(events.at(-2)!.choices![0]!.finish_reason).toBe(reason);
    expect(events.at(-1)).toMatchObject({ choices: [], usage: wholeResponse.usage });
    const stop = text.slice(3, 6);
    const stoppedResponse = (await (await post("/v1/completions", { ...body, stop })).json()) as typeof wholeResponse;
    expect(stoppedResponse.choices[0]).toMatchObject({
      text: text.slice(0, text.indexOf(stop)),
      finish_reason: "stop",
    });
    const otherSeedResponse = (await (
      await post("/v1/completions", { ...body, seed: 6 })
    ).json()) as typeof wholeResponse;
    expect(otherSeedResponse.choices[0]!.text).not.toBe(text);
  });

  test("answers conversations, in one response and as a stream", async () => {
    const messages = [{ role: "user", content: [{ type: "text", text: "Who art thou?" }] }];
    const body = { messages, max_completion_tokens: 12, temperature: 0 };
    const wholeResponse = (await (await post("/v1/chat/completions", body)).json()) as {
      readonly choices: readonly { readonly message: { readonly content: string } }[];
    };
    expect(wholeResponse).toMatchObject({ object: "chat.completion", choices: [{ message: { role: "assistant" } }] });
    const response = await post("/v1/chat/completions", { ...body, stream: true });
    let content = "";
    for await (const { choices } of readEvents(response)) content += choices![0]?.delta?.content ?? "";
    expect(content).toBe(wholeResponse.choices[0]!.message.content);
  });

  test("serves concurrent requests under load without faults or leaked memory", async () => {
    const healthBefore = await waitUntilIdle();
    const loadSettings = {
      url: server.url,
      model,
      clients: 16,
      requests: 80,
      numCancelled: 16,
      numMalformed: 14,
      tokens: 8,
    };
    const report = await runLoad(loadSettings);
    expect(report.faults).toEqual([]);
    expect([report.completed, report.cancelled]).toEqual([50, 16]);
    expect(report.refused).toEqual({ 400: 9, 404: 2, 405: 1, 413: 1, 415: 1 });
    const { allocated } = (await waitUntilIdle()).ranks;
    expect(allocated).toBeLessThan(healthBefore.ranks.allocated + 65_536);
  });

  test("requests get 503 after a rank is killed, and the restarted ranks serve again", async () => {
    const body = { prompt: "And", max_tokens: 100, temperature: 0 };
    const expected = await (await post("/v1/completions", { ...body, max_tokens: 8 })).json();
    // A stopped rank prevents progress of the texts.
    process.kill(pids.get(1)!, "SIGSTOP");
    const responses = [true, true, false, false].map((stream) => post("/v1/completions", { ...body, stream }));
    while ((await fetchHealth()).running < responses.length);
    const readyPromise = waitForReady();
    process.kill(pids.get(1)!, "SIGKILL");
    for (const answer of responses) expect((await answer).status).toBe(503);
    const refusedResponse = await post("/v1/completions", body);
    expect(refusedResponse.status).toBe(503);
    expect(refusedResponse.headers.get("retry-after")).toBe("2");
    expect((await fetch(`${server.url}/health`)).status).toBe(503);
    await readyPromise;
    const repeatedResponse = await (await post("/v1/completions", { ...body, max_tokens: 8 })).json();
    expect((repeatedResponse as { choices: unknown }).choices).toEqual((expected as { choices: unknown }).choices);
  });

  test("stopping lets running requests complete", async () => {
    const response = await post("/v1/completions", { prompt: "And", max_tokens: 40, temperature: 0, stream: true });
    // Connections whose client has not sent a complete request do not prevent the server from stopping.
    const { hostname, port } = new URL(server.url);
    const sockets = [0, 1].map(() => connect(Number(port), hostname).on("error", () => {}));
    const [unused, incomplete] = sockets as [Socket, Socket];
    await Promise.all([once(unused, "connect"), once(incomplete, "connect")]);
    incomplete.write("POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\n{");
    server.stop();
    let lastEvent: StreamEvent | undefined;
    for await (const event of readEvents(response)) lastEvent = event;
    expect(lastEvent?.choices?.[0]?.finish_reason).toMatch(/stop|length/);
    await server.completion;
    for (const socket of sockets) socket.destroy();
    await expect(fetch(server.url)).rejects.toThrow(/fetch failed/);
  });
});

test("a request whose prompt is being encoded gets 503 when the ranks have exited", async () => {
  const servedFolder = join(folder, "long", model);
  await writeServedFolder(servedFolder, 8192);
  // Ranks that never connect, and a worker that never responds.
  writeFileSync(join(servedFolder, "silent.mjs"), "setInterval(() => {}, 60_000);");
  const silentEntry = pathToFileURL(join(servedFolder, "silent.mjs"));
  const encode = vi.spyOn(PromptEncoder.prototype, "encode");
  server = await serve(parseServeSettings(["--model", servedFolder, "--port", "0"]), {
    entry: silentEntry,
    promptWorker: silentEntry,
    page: new URL("../page/chat.html", import.meta.url),
  });
  try {
    const response = post("/v1/completions", { prompt: "In the beginning ".repeat(300) });
    await vi.waitUntil(() => encode.mock.calls.length > 0);
    server.kill();
    const { status, body } = await response;
    expect([status, await new Response(body).json()]).toMatchObject([
      503,
      { error: { message: "the ranks have exited", code: "service_unavailable" } },
    ]);
  } finally {
    server.kill();
    await server.completion;
    encode.mockRestore();
  }
});

test("a server whose socket for the ranks cannot be created releases its port and its directory", async () => {
  const [servedFolder, directory] = [join(folder, "socketless"), join(folder, "tmp")];
  await writeServedFolder(servedFolder);
  mkdirSync(directory);
  vi.stubEnv("TMPDIR", directory);
  const settings = parseServeSettings(["--model", servedFolder, "--port", "0"]);
  const serveOptions = {
    entry: new URL("file:///none"),
    promptWorker,
    page: new URL("../page/chat.html", import.meta.url),
  };
  // Simulates a file system without sockets.
  const { listen } = Server.prototype;
  const listenSpy = vi.spyOn(Server.prototype, "listen").mockImplementation(function (
    this: Server,
    ...args: unknown[]
  ) {
    if (typeof args[0] === "string") return Reflect.apply(listen, this, [join(directory, "missing", "socket")]);
    return Reflect.apply(listen, this, args);
  });
  try {
    await expect(serve(settings, serveOptions)).rejects.toThrow(
      /TMPDIR: expected a directory in which a socket can be created, received .*: listen E/,
    );
    const servers = listenSpy.mock.contexts as readonly Server[];
    expect(servers.map(({ listening }) => listening)).toEqual([false, false]);
    expect(readdirSync(directory)).toEqual([]);
  } finally {
    for (const each of listenSpy.mock.contexts as readonly Server[]) each.close();
    listenSpy.mockRestore();
    vi.unstubAllEnvs();
  }
});

test("a folder without a model, an unusable TMPDIR, a port above 65535 and the backend local are usage errors", async () => {
  const serveOptions = {
    entry: new URL("file:///none"),
    promptWorker,
    page: new URL("../page/chat.html", import.meta.url),
  };
  await expect(serve(parseServeSettings(["--model", folder]), serveOptions)).rejects.toThrow(
    /--model: expected a folder with config.json/,
  );
  const otherFolder = join(folder, "other");
  await writeServedFolder(otherFolder);
  for (const [directory, message] of [
    [join(folder, "missing"), /TMPDIR: expected a directory that can be written/],
    [join(folder, "d".repeat(100)), /TMPDIR: expected a path at least \d+ bytes shorter/],
  ] as const) {
    vi.stubEnv("TMPDIR", directory);
    const settings = parseServeSettings(["--model", otherFolder, "--port", "0"]);
    await expect(serve(settings, serveOptions)).rejects.toThrow(message);
    vi.unstubAllEnvs();
  }
  expect(() => parseServeSettings(["--port", "65536"])).toThrow(/--port: expected at most 65535/);
  expect(() => parseServeSettings(["--backend", "local"])).toThrow(/--backend: expected ring, flex or ulysses/);
});
