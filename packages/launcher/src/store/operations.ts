import { type Header, STORE_LIMITS, StoreError } from "./protocol.ts";
import { type CancelCallback, StoreTable } from "./table.ts";

interface BarrierArrival {
  readonly member: string | undefined;
  readonly release: () => void;
}

interface BarrierState {
  readonly count: number;
  readonly arrivals: Set<BarrierArrival>;
}

/** Barriers by key. Each is empty again once released, so a name may be used for every step of a loop. */
class BarrierTable {
  readonly #barriers = new Map<string, BarrierState>();

  /** Arrives; `release` is called when `count` have. The cancel withdraws the arrival. */
  arrive(key: string, count: number, arrival: BarrierArrival): CancelCallback {
    if (!Number.isInteger(count) || count < 1)
      throw new StoreError("REQUEST", `store: barrier "${key}": count must be a positive integer, received ${count}`);
    const gathering = this.#barriers.get(key) ?? { count, arrivals: new Set() };
    if (gathering.count !== count)
      throw new StoreError(
        "REQUEST",
        `store: barrier "${key}" expects ${gathering.count} callers, received count ${count}`,
      );
    this.#barriers.set(key, gathering);
    gathering.arrivals.add(arrival);
    if (gathering.arrivals.size === count) {
      this.#barriers.delete(key);
      for (const { release } of gathering.arrivals) release();
    }
    return () => {
      gathering.arrivals.delete(arrival);
      if (gathering.arrivals.size === 0 && this.#barriers.get(key) === gathering) this.#barriers.delete(key);
    };
  }

  /** Who waits at `key`, for the message of a timeout: `2 of 4 arrived (0, 3)`. */
  describe(key: string): string {
    const gathering = this.#barriers.get(key);
    if (gathering === undefined) return "no rank has arrived";
    const members = [...gathering.arrivals].flatMap(({ member }) => (member === undefined ? [] : [member]));
    const names = members.length > 0 ? ` (${members.join(", ")})` : "";
    return `${gathering.arrivals.size} of ${gathering.count} arrived${names}`;
  }
}

/** What an attempt's clients share. */
export interface StoreState {
  readonly table: StoreTable;
  readonly barriers: BarrierTable;
}

/** The state of a new attempt. */
export const emptyStoreState = (): StoreState => ({ table: new StoreTable(), barriers: new BarrierTable() });

/** One request and how to reply to its client. */
interface StoreRequest {
  readonly header: Header;
  readonly payload: Buffer;
  reply(fields: Header, payload?: Buffer): void;
  reject(error: StoreError): void;
}

/** Does one request. Returns a cancel when the reply must wait; throws StoreError when it is rejected at once. */
export function runRequest({ table, barriers }: StoreState, request: StoreRequest): CancelCallback | undefined {
  const { header, payload, reply } = request;
  switch (header.op) {
    case "set":
      table.set(textField(header, "key"), payload);
      return void reply({});
    case "get":
      return get(table, request);
    case "add":
      return void reply({ value: table.add(textField(header, "key"), integerField(header, "delta")) });
    case "cas":
      return void compareAndSet(table, request);
    case "delete":
      return void reply({ deleted: table.delete(textField(header, "key")) });
    case "wait": {
      const keys = textListField(header, "keys");
      const missing = (): string => keys.filter((key) => table.get(key) === undefined).join(", ");
      const begin = (): CancelCallback => table.waitForKeys(keys, () => reply({}));
      return waitWithTimeout(request, begin, () => `wait: missing keys: ${missing()}`);
    }
    case "barrier": {
      const key = textField(header, "key");
      const member = header.member === undefined ? undefined : textField(header, "member");
      const count = integerField(header, "count");
      const begin = (): CancelCallback => barriers.arrive(key, count, { member, release: () => reply({}) });
      return waitWithTimeout(request, begin, () => `barrier "${key}": ${barriers.describe(key)}`);
    }
    default:
      throw new StoreError("REQUEST", `store: unknown op ${JSON.stringify(header.op)}`);
  }
}

function get(table: StoreTable, request: StoreRequest): CancelCallback | undefined {
  const key = textField(request.header, "key");
  const answer = (): void => {
    const value = table.get(key);
    request.reply({ found: value !== undefined }, value);
  };
  if (request.header.wait !== true) return void answer();
  return waitWithTimeout(
    request,
    () => table.waitForKeys([key], answer),
    () => `get: "${key}" is not set`,
  );
}

function compareAndSet(table: StoreTable, { header, payload, reply }: StoreRequest): void {
  const key = textField(header, "key");
  const cut = header.expected === null ? 0 : integerField(header, "expected");
  if (cut < 0 || cut > payload.length)
    throw new StoreError(
      "REQUEST",
      `store: compare-and-set "${key}": "expected" has ${cut} bytes, but the payload has only ${payload.length} bytes`,
    );
  const expected = header.expected === null ? undefined : payload.subarray(0, cut);
  const { swapped, current } = table.compareAndSet(key, expected, payload.subarray(cut));
  reply({ swapped, found: current !== undefined }, current);
}

/** Begins a wait, bounded: after the request's timeout it is cancelled and rejected with what was still missing. */
function waitWithTimeout(request: StoreRequest, begin: () => CancelCallback, missing: () => string): CancelCallback {
  const timeout = request.header.timeout ?? STORE_LIMITS.defaultTimeoutMs;
  if (typeof timeout !== "number" || !(timeout >= 0))
    throw new StoreError(
      "REQUEST",
      `store: timeout must be a number of milliseconds ≥ 0, received ${JSON.stringify(timeout)}`,
    );
  const cancel = begin();
  const timer = setTimeout(
    () => {
      const error = new StoreError("TIMEOUT", `store: timed out after ${timeout} ms: ${missing()}`);
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
  throw new StoreError("REQUEST", `store: ${header.op}: ${field} must be a string, received ${JSON.stringify(value)}`);
}

function textListField(header: Header, field: string): readonly string[] {
  const value = header[field];
  if (Array.isArray(value) && value.every((one) => typeof one === "string")) return value;
  throw new StoreError("REQUEST", `store: ${header.op}: ${field} must be a list of strings`);
}

function integerField(header: Header, field: string): number {
  const value = header[field];
  if (typeof value === "number" && Number.isSafeInteger(value)) return value;
  throw new StoreError(
    "REQUEST",
    `store: ${header.op}: ${field} must be an integer, received ${JSON.stringify(value)}`,
  );
}
