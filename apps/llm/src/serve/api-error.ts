/** A response with a status other than 200, in the format of OpenAI's API. */
export class ApiError extends Error {
  override readonly name: string = "ApiError";
  readonly status: number;
  readonly code: string | null;
  /** The invalid field of the request. */
  readonly param: string | null;
  readonly headers: Readonly<Record<string, string>>;

  constructor(
    status: number,
    message: string,
    {
      code = null,
      param = null,
      headers = {},
    }: { code?: string | null; param?: string | null; headers?: Readonly<Record<string, string>> } = {},
  ) {
    super(message);
    this.status = status;
    this.code = code;
    this.param = param;
    this.headers = headers;
  }

  /** Returns the content of the response body or of a stream event. */
  toJSON(): object {
    const { message, param, code } = this;
    return { error: { message, type: errorType(this.status), param, code } };
  }
}

function errorType(status: number): string {
  if (status === 401) return "authentication_error";
  if (status === 429) return "rate_limit_error";
  return status < 500 ? "invalid_request_error" : "server_error";
}

/** Returns an error 429 for a request that arrives while the maximum number of others waits. */
export function queueFullError(numWaiting: number, maxWaiting: number): ApiError {
  const message = `the queue is full: ${numWaiting} requests are waiting, the limit is ${maxWaiting}; try again later`;
  return new ApiError(429, message, { code: "queue_full", headers: { "retry-after": "1" } });
}

/** Returns an error 400 for a field that is missing, invalid or not supported. */
export function invalidFieldError(param: string, message: string, code: string | null = null): ApiError {
  return new ApiError(400, message, { param, code });
}

/** Returns an error 503, because the ranks currently cannot generate. */
export function unavailableError(message: string): ApiError {
  return new ApiError(503, message, { code: "service_unavailable", headers: { "retry-after": "2" } });
}
