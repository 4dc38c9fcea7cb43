import { createHash, timingSafeEqual } from "node:crypto";
import type { IncomingMessage } from "node:http";
import { ApiError } from "./api-error.ts";

const loopbackNames: readonly string[] = ["localhost", "127.0.0.1", "[::1]"];

export const isLoopback = (host: string): boolean => loopbackNames.includes(host) || host === "::1";

/** Removes the port: `localhost:8000` → `localhost`, `[::1]:8000` → `[::1]`. */
const removePort = (host: string): string => host.replace(/:\d+$/, "").toLowerCase();

/**
 * Rejects requests from pages of other sites, because a browser lets any page send requests to this machine. On the
 * loopback interface, a host name other than its own belongs to a site whose address was changed to the loopback
 * address (DNS rebinding).
 *
 * @throws ApiError, 403.
 */
export function checkHostAndOrigin({ headers }: IncomingMessage, host: string): void {
  const hostHeader = headers.host ?? "";
  if (isLoopback(host) && !loopbackNames.includes(removePort(hostHeader))) {
    throw new ApiError(403, `header Host: expected one of ${loopbackNames.join(", ")}, received "${hostHeader}"`, {
      code: "foreign_host",
    });
  }
  const { origin } = headers;
  if (origin === undefined || (URL.canParse(origin) && new URL(origin).host === hostHeader)) return;
  throw new ApiError(403, `header Origin: expected the host "${hostHeader}", received "${origin}"`, {
    code: "foreign_origin",
  });
}

const digest = (text: string): Buffer => createHash("sha256").update(text).digest();

/**
 * Checks `Authorization: Bearer KEY`, in a time that does not depend on how much of the key is correct. With an empty
 * `key`, all requests are accepted.
 *
 * @throws ApiError, 401.
 */
export function checkKey({ headers }: IncomingMessage, key: string): void {
  if (key === "") return;
  const [, sentKey = ""] = /^Bearer (.*)$/i.exec(headers.authorization ?? "") ?? [];
  if (timingSafeEqual(digest(sentKey), digest(key))) return;
  throw new ApiError(
    401,
    `API key (Authorization: Bearer KEY): expected the key of the server, received ${sentKey === "" ? "no key" : "a different key"}`,
    {
      code: "invalid_api_key",
      headers: { "www-authenticate": "Bearer" },
    },
  );
}

/**
 * Bytes beyond the limit of a body that are read, so that the client receives the error, before the connection is
 * closed.
 */
const MAX_DISCARDED_BYTES = 64 * 2 ** 20;

/**
 * Reads the body of a request, in UTF-8 JSON.
 *
 * @throws ApiError, 400 for invalid UTF-8, 413 beyond `maxBytes` and 415 for another type, because a page of another
 * site can send other types without a preflight request.
 */
export async function readBody(request: IncomingMessage, maxBytes: number): Promise<string> {
  const contentType = request.headers["content-type"] ?? "";
  const isJson = /^application\/json\s*(;|$)/i.test(contentType);
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (isJson && bytes <= maxBytes) chunks.push(chunk);
    else if (bytes > maxBytes + MAX_DISCARDED_BYTES) break;
  }
  if (!isJson) throw new ApiError(415, `expected content-type: application/json, received "${contentType}"`);
  if (bytes > maxBytes)
    throw new ApiError(413, `request body: expected at most ${maxBytes} bytes, received at least ${bytes}`, {
      code: "body_too_large",
    });
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(Buffer.concat(chunks));
  } catch {
    throw new ApiError(400, "body: expected JSON in UTF-8, received bytes that are not UTF-8", {
      code: "invalid_json",
    });
  }
}
