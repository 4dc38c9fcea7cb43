/** An answer other than 200, in the form of OpenAI's API. */
export class ApiError extends Error {
  override readonly name: string = "ApiError";
  readonly status: number;
  readonly code: string | null;
  /** The field of the request that is at fault. */
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

  /** What the body, or an event of a stream, holds. */
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

/** 400: a field that is missing, wrong or not supported. */
export function invalidFieldError(param: string, message: string, code: string | null = null): ApiError {
  return new ApiError(400, message, { param, code });
}

/** 503: the ranks cannot generate now. */
export function unavailableError(message: string): ApiError {
  return new ApiError(503, message, { code: "service_unavailable", headers: { "retry-after": "2" } });
}
