import { createHash } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { checkKey, checkHostAndOrigin, readBody } from "./access.ts";
import { Answer } from "./answer.ts";
import { ApiError } from "./api-error.ts";
import type { Engine } from "./engine.ts";
import { parseRequest, type RequestKind } from "./request.ts";
import type { ServedModel } from "./served-model.ts";

/** Requirements and limits of requests. */
export interface RequestRules {
  /** The address that the server listens on. */
  readonly host: string;
  /** API key. If empty, no key is required. */
  readonly key: string;
  readonly maxBodyBytes: number;
  /** Maximum time from the arrival of a request's body to the end of its text. */
  readonly deadlineMs: number;
}

export interface HttpServerOptions {
  readonly engine: Engine;
  readonly model: ServedModel;
  /** The page at /. It requires no key, because it prompts for the key. */
  readonly page: string;
  readonly rules: RequestRules;
}

interface Exchange extends HttpServerOptions {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
}

interface Route {
  readonly method: "GET" | "POST";
  readonly isPublic?: boolean;
  handle(exchange: Exchange): void | Promise<void>;
}

const routes: Readonly<Record<string, Route>> = {
  "/": { method: "GET", isPublic: true, handle: sendPage },
  "/health": { method: "GET", handle: sendHealth },
  "/v1/models": { method: "GET", handle: ({ response, model }) => sendJson(response, 200, listModels(model)) },
  "/v1/completions": { method: "POST", handle: (exchange) => generate(exchange, "completion") },
  "/v1/chat/completions": { method: "POST", handle: (exchange) => generate(exchange, "chat") },
};

/** Creates a server of OpenAI's API. It parses and checks requests, and writes the text that the ranks generate. */
export function createHttpServer(options: HttpServerOptions): Server {
  const server = createServer((request, response) => {
    // A server that is closing must not wait for keep-alive connections.
    response.on("close", () => setImmediate(() => server.listening || server.closeIdleConnections()));
    void handleRequest({ ...options, request, response });
  });
  server.headersTimeout = 20_000;
  server.requestTimeout = 60_000;
  return server;
}

async function handleRequest(exchange: Exchange): Promise<void> {
  const { request, response, rules } = exchange;
  response.setHeader("x-content-type-options", "nosniff");
  response.setHeader("cache-control", "no-store");
  try {
    checkHostAndOrigin(request, rules.host);
    const { method, isPublic, handle } = findRoute(request);
    // Node omits the body of a response to HEAD.
    const methods = method === "GET" ? ["GET", "HEAD"] : [method];
    if (!methods.includes(request.method ?? "")) {
      const message = `${request.url ?? ""}: expected method ${methods.join(" or ")}, received ${request.method ?? ""}`;
      throw new ApiError(405, message, { code: "method_not_allowed", headers: { allow: methods.join(", ") } });
    }
    if (isPublic !== true) checkKey(request, rules.key);
    await handle(exchange);
  } catch (error) {
    sendError(exchange, error);
  }
}

/** Returns the path of a request: `/health` for `/health?x=1` and for `http://127.0.0.1:8000/health`. */
const requestPath = ({ url = "" }: IncomingMessage): string =>
  url.replace(/^https?:\/\/[^/?]*/i, "").replace(/\?.*$/s, "") || "/";

function findRoute(request: IncomingMessage): Route {
  const path = requestPath(request);
  if (Object.hasOwn(routes, path)) return routes[path]!;
  if (path.startsWith("/v1/models/")) return { method: "GET", handle: sendModel };
  const expectedPaths = [...Object.keys(routes), "/v1/models/MODEL"].join(", ");
  throw new ApiError(404, `path: expected one of ${expectedPaths}, received "${path.slice(0, 100)}"`, {
    code: "unknown_url",
  });
}

function sendJson(response: ServerResponse, status: number, body: object): void {
  const text = `${JSON.stringify(body)}\n`;
  response.writeHead(status, { "content-type": "application/json", "content-length": Buffer.byteLength(text) });
  response.end(text);
}

/** Sends an error response. For a stream that has begun, sends an error event and ends the stream without [DONE]. */
function sendError({ request, response }: Exchange, cause: unknown): void {
  const isApiError = cause instanceof ApiError;
  // A client that disconnected while it sent its body receives no response.
  if (!isApiError && request.destroyed && !request.complete) return;
  const error = isApiError ? cause : new ApiError(500, "internal server error");
  if (!isApiError) process.stderr.write(`${(cause as Error).stack}\n`);
  if (response.headersSent) {
    response.end(`data: ${JSON.stringify(error)}\n\n`);
    return;
  }
  for (const [name, value] of Object.entries(error.headers)) response.setHeader(name, value);
  // A body that was not read must not be parsed as the next request.
  if (!request.complete) response.setHeader("connection", "close");
  sendJson(response, error.status, error);
}

function describeModel({ name, created, maxLength, tokenizer }: ServedModel): object {
  const model = { id: name, object: "model", created, owned_by: "mosaic" };
  return { ...model, max_model_len: maxLength, has_chat_template: tokenizer.hasChatTemplate };
}

const listModels = (model: ServedModel): object => ({ object: "list", data: [describeModel(model)] });

/** Decodes percent-encoded characters. Returns a segment with an invalid encoding as it is. */
function decodePathSegment(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

function sendModel({ request, response, model }: Exchange): void {
  const name = decodePathSegment(requestPath(request).slice("/v1/models/".length));
  if (name === model.name) return sendJson(response, 200, describeModel(model));
  throw new ApiError(404, `${request.url ?? ""}: unknown model; this server has the model "${model.name}"`, {
    code: "model_not_found",
    param: "model",
  });
}

async function sendHealth({ response, engine }: Exchange): Promise<void> {
  const ranks = await engine.stats();
  const status = engine.isReady && ranks !== null ? "ready" : "unavailable";
  const { numRunning: running, numWaiting: waiting } = engine;
  sendJson(response, status === "ready" ? 200 : 503, { status, running, waiting, ranks });
}

/** Sends the page, with a policy that permits only its own script and only connections to this server. */
function sendPage({ response, page }: Exchange): void {
  const hashInlineBlock = (tag: string): string => {
    const [, text = ""] = new RegExp(`<${tag}>([^]*?)</${tag}>`).exec(page) ?? [];
    return `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
  };
  const policy = [
    ...["default-src 'none'", "connect-src 'self'", "img-src data:", "base-uri 'none'", "form-action 'none'"],
    ...["frame-ancestors 'none'", `script-src ${hashInlineBlock("script")}`, `style-src ${hashInlineBlock("style")}`],
  ];
  response.writeHead(200, {
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": policy.join("; "),
    "referrer-policy": "no-referrer",
  });
  response.end(page);
}

async function generate(exchange: Exchange, kind: RequestKind): Promise<void> {
  const { request, response, rules } = exchange;
  const body = await readBody(request, rules.maxBodyBytes);
  if (response.destroyed) return;
  const controller = new AbortController();
  const timer = setTimeout(() => {
    const message = `the request timed out after ${rules.deadlineMs / 1000} s`;
    controller.abort(new ApiError(504, message, { code: "deadline_exceeded" }));
  }, rules.deadlineMs);
  const onClose = (): void => controller.abort();
  response.once("close", onClose);
  try {
    await sendText(exchange, { kind, body, signal: controller.signal });
  } catch (error) {
    if (!response.destroyed) throw error;
  } finally {
    clearTimeout(timer);
    response.off("close", onClose);
  }
}

interface TextExchange {
  readonly kind: RequestKind;
  readonly body: string;
  /** Aborted when the client has disconnected, and with an ApiError when the deadline has passed. */
  readonly signal: AbortSignal;
}

async function sendText({ response, engine, model }: Exchange, { kind, body, signal }: TextExchange): Promise<void> {
  const textRequest = await parseRequest(kind, body, { model, signal });
  signal.throwIfAborted();
  const answer = new Answer(textRequest, model.name);
  const send = (chunks: readonly object[]): void => {
    for (const chunk of chunks) response.write(`data: ${JSON.stringify(chunk)}\n\n`);
  };
  await new Promise<void>((resolve, reject) => {
    const cancel = engine.submit(textRequest.options, {
      onPiece(piece) {
        answer.append(piece);
        if (textRequest.isStreamed) {
          // The status is not sent before the first token, so that a rank lost before then results in 503.
          if (!response.headersSent) {
            response.writeHead(200, { "content-type": "text/event-stream" });
            send(answer.openingChunks());
          }
          send(answer.chunks(piece));
        }
        if (piece.finishReason !== null) endExchange(resolve);
      },
      onError: (error) => endExchange(() => reject(error)),
    });
    const onAbort = (): void => {
      cancel();
      endExchange(() => reject(signal.reason as Error));
    };
    signal.addEventListener("abort", onAbort);
    function endExchange(settle: () => void): void {
      signal.removeEventListener("abort", onAbort);
      settle();
    }
  });
  if (textRequest.isStreamed) response.end("data: [DONE]\n\n");
  else sendJson(response, 200, answer.toResponse());
}
