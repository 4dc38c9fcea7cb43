import { type Header, STORE_LIMITS, StoreError } from "./protocol.ts";
import { type CancelCallback, checkKey, StoreTable } from "./table.ts";

interface BarrierArrival {
  readonly member: string | undefined;
  readonly release: () => void;
}

interface BarrierState {
  readonly count: number;
  readonly arrivals: Set<BarrierArrival>;
}

/** Barriers by key. A released barrier is empty again, so that the same key can be used in each step of a loop. */
class BarrierTable {
  readonly #barriers = new Map<string, BarrierState>();

  /** Adds an arrival. All arrivals are released when there are `count`. The returned callback withdraws the arrival. */
  addArrival(key: string, count: number, arrival: BarrierArrival): CancelCallback {
    if (!Number.isInteger(count) || count < 1)
      throw new StoreError("REQUEST", `store: barrier "${key}": count: expected an integer ≥ 1, received ${count}`);
    const barrier = this.#barriers.get(key) ?? { count, arrivals: new Set() };
    if (barrier.count !== count)
      throw new StoreError(
        "REQUEST",
        `store: barrier "${key}": count: expected ${barrier.count}, as in earlier calls, received ${count}`,
      );
    this.#barriers.set(key, barrier);
    barrier.arrivals.add(arrival);
    if (barrier.arrivals.size === count) {
      this.#barriers.delete(key);
      for (const { release } of barrier.arrivals) release();
    }
    return () => {
      barrier.arrivals.delete(arrival);
      if (barrier.arrivals.size === 0 && this.#barriers.get(key) === barrier) this.#barriers.delete(key);
    };
  }

  /** Describes the arrivals at `key` for the message of a timeout, such as `2 of 4 arrived (0, 3)`. */
  describe(key: string): string {
    const barrier = this.#barriers.get(key);
    if (barrier === undefined) return "no rank has arrived";
    const members = [...barrier.arrivals].flatMap(({ member }) => (member === undefined ? [] : [member]));
    const names = members.length > 0 ? ` (${members.join(", ")})` : "";
    return `${barrier.arrivals.size} of ${barrier.count} arrived${names}`;
  }
}

/** State that is shared by the clients of an attempt. */
export interface StoreState {
  readonly table: StoreTable;
  readonly barriers: BarrierTable;
}

/** Creates the state of a new attempt. */
export const createStoreState = (): StoreState => ({ table: new StoreTable(), barriers: new BarrierTable() });

/** One request with the callbacks for its reply. */
interface StoreRequest {
  readonly header: Header;
  readonly payload: Buffer;
  reply(fields: Header, payload?: Buffer): void;
  reject(error: StoreError): void;
}

/**
 * Executes one request. Returns a callback that cancels it if the reply is deferred. Throws StoreError if it is
 * rejected at once.
 */
export function runRequest({ table, barriers }: StoreState, request: StoreRequest): CancelCallback | undefined {
  const { header, payload, reply } = request;
  switch (header.op) {
    case "set":
      table.set(textField(header, "key"), payload);
      return void reply({});
    case "get":
      return handleGet(table, request);
    case "add":
      return void reply({ value: table.add(textField(header, "key"), integerField(header, "delta")) });
    case "cas":
      return void handleCompareAndSet(table, request);
    case "delete":
      return void reply({ deleted: table.delete(textField(header, "key")) });
    case "wait": {
      const keys = textListField(header, "keys");
      const formatMissingKeys = (): string => keys.filter((key) => table.get(key) === undefined).join(", ");
      const startWait = (): CancelCallback => table.waitForKeys(keys, () => reply({}));
      return waitWithTimeout(request, startWait, () => `wait: missing keys: ${formatMissingKeys()}`);
    }
    case "barrier": {
      const key = checkKey(textField(header, "key"));
      const member = header.member === undefined ? undefined : textField(header, "member");
      const count = integerField(header, "count");
      const startWait = (): CancelCallback => barriers.addArrival(key, count, { member, release: () => reply({}) });
      return waitWithTimeout(request, startWait, () => `barrier "${key}": ${barriers.describe(key)}`);
    }
    default:
      throw new StoreError(
        "REQUEST",
        `store: op: expected set, get, add, cas, delete, wait or barrier, received ${JSON.stringify(header.op)}`,
      );
  }
}

function handleGet(table: StoreTable, request: StoreRequest): CancelCallback | undefined {
  const key = textField(request.header, "key");
  const replyWithValue = (): void => {
    const value = table.get(key);
    request.reply({ found: value !== undefined }, value);
  };
  if (request.header.wait !== true) return void replyWithValue();
  return waitWithTimeout(
    request,
    () => table.waitForKeys([key], replyWithValue),
    () => `get: "${key}" is not set`,
  );
}

function handleCompareAndSet(table: StoreTable, { header, payload, reply }: StoreRequest): void {
  const key = textField(header, "key");
  const expectedLength = header.expected === null ? 0 : integerField(header, "expected");
  if (expectedLength < 0 || expectedLength > payload.length)
    throw new StoreError(
      "REQUEST",
      `store: cas "${key}": field "expected": expected a length from 0 to ${payload.length} bytes, as in the payload, ` +
        `received ${expectedLength} bytes`,
    );
  const expected = header.expected === null ? undefined : payload.subarray(0, expectedLength);
  const { swapped, current } = table.compareAndSet(key, expected, payload.subarray(expectedLength));
  reply({ swapped, found: current !== undefined }, current);
}

/**
 * Starts a wait with the request's timeout. After the timeout it is cancelled, and rejected with a description of what
 * is missing.
 */
function waitWithTimeout(
  request: StoreRequest,
  startWait: () => CancelCallback,
  describeMissing: () => string,
): CancelCallback {
  const timeout = request.header.timeout ?? STORE_LIMITS.defaultTimeoutMs;
  if (typeof timeout !== "number" || !(timeout >= 0))
    throw new StoreError(
      "REQUEST",
      `store: timeout: expected a number of milliseconds ≥ 0, received ${JSON.stringify(timeout)}`,
    );
  const cancel = startWait();
  const timer = setTimeout(
    () => {
      const error = new StoreError("TIMEOUT", `store: timed out after ${timeout} ms: ${describeMissing()}`);
      cancel();
      request.reject(error);
    },
    Math.min(timeout, 2 ** 31 - 1),
  );
  return () => {
    clearTimeout(timer);
    cancel();
  };
}

function textField(header: Header, field: string): string {
  const value = header[field];
  if (typeof value === "string") return value;
  throw new StoreError(
    "REQUEST",
    `store: ${header.op}: ${field}: expected a string, received ${JSON.stringify(value)}`,
  );
}

function textListField(header: Header, field: string): readonly string[] {
  const value = header[field];
  if (Array.isArray(value) && value.every((item) => typeof item === "string")) return value;
  throw new StoreError(
    "REQUEST",
    `store: ${header.op}: ${field}: expected a list of strings, received ${JSON.stringify(value)}`,
  );
}

function integerField(header: Header, field: string): number {
  const value = header[field];
  if (typeof value === "number" && Number.isSafeInteger(value)) return value;
  throw new StoreError(
    "REQUEST",
    `store: ${header.op}: ${field}: expected an integer, received ${JSON.stringify(value)}`,
  );
}
