import { STORE_LIMITS, StoreError } from "./protocol.ts";

/** Stops waiting; safe to call more than once. */
export type CancelCallback = () => void;

/** The keys of one attempt. Independent of sockets: waiting is a callback, and every method rejects by throwing. */
export class StoreTable {
  readonly #values = new Map<string, Buffer>();
  readonly #watchers = new Map<string, Set<() => void>>();
  #totalBytes = 0;

  get(key: string): Buffer | undefined {
    return this.#values.get(checkKey(key));
  }

  set(key: string, value: Buffer): void {
    checkKey(key);
    const before = this.#values.get(key);
    const total = this.#totalBytes + value.length - (before?.length ?? 0);
    if (value.length > STORE_LIMITS.value)
      throw limitError(`value of ${value.length} bytes`, `${STORE_LIMITS.value} bytes`);
    if (total > STORE_LIMITS.total)
      throw limitError(`total of ${total} bytes`, `${STORE_LIMITS.total} bytes; delete keys that are no longer used`);
    if (before === undefined && this.#values.size >= STORE_LIMITS.keys)
      throw limitError(
        `total of ${STORE_LIMITS.keys + 1} keys`,
        `${STORE_LIMITS.keys} keys; delete keys that are no longer used`,
      );
    this.#values.set(key, Buffer.from(value));
    this.#totalBytes = total;
    if (before === undefined) for (const notify of [...(this.#watchers.get(key) ?? [])]) notify();
  }

  /** Adds to a counter that starts at 0, and returns what it is now. */
  add(key: string, delta: number): number {
    if (!Number.isSafeInteger(delta)) throw createRequestError(`add: delta must be a safe integer, received ${delta}`);
    const before = this.get(key)?.toString() ?? "0";
    const sum = Number(before) + delta;
    if (!/^-?\d+$/.test(before) || !Number.isSafeInteger(sum))
      throw createRequestError(
        `add: cannot add ${delta} to the value ${JSON.stringify(before.slice(0, 40))} of "${key}"`,
      );
    this.set(key, Buffer.from(String(sum)));
    return sum;
  }

  /** Replaces `expected` (undefined: absent) by `value`; returns whether it did, and what the key holds now. */
  compareAndSet(key: string, expected: Buffer | undefined, value: Buffer): { swapped: boolean; current?: Buffer } {
    const current = this.get(key);
    const equal = current === undefined || expected === undefined ? current === expected : current.equals(expected);
    if (equal) this.set(key, value);
    const now = this.get(key);
    return now === undefined ? { swapped: equal } : { swapped: equal, current: now };
  }

  delete(key: string): boolean {
    this.#totalBytes -= this.get(key)?.length ?? 0;
    return this.#values.delete(key);
  }

  /** Calls `ready` once, as soon as every key exists: now, if they all do. */
  waitForKeys(keys: readonly string[], ready: () => void): CancelCallback {
    const missing = new Map<string, () => void>();
    const cancel = (): void => {
      for (const [key, notify] of missing) this.#unwatch(key, notify);
      missing.clear();
    };
    for (const key of new Set(keys)) {
      if (this.get(key) !== undefined) continue;
      const notify = (): void => {
        this.#unwatch(key, notify);
        missing.delete(key);
        if (missing.size === 0) ready();
      };
      missing.set(key, notify);
    }
    for (const [key, notify] of missing) this.#watch(key, notify);
    if (missing.size === 0) ready();
    return cancel;
  }

  #watch(key: string, notify: () => void): void {
    const watchers = this.#watchers.get(key) ?? new Set();
    this.#watchers.set(key, watchers.add(notify));
  }

  #unwatch(key: string, notify: () => void): void {
    const watchers = this.#watchers.get(key);
    watchers?.delete(notify);
    if (watchers?.size === 0) this.#watchers.delete(key);
  }
}

function checkKey(key: string): string {
  const bytes = Buffer.byteLength(key);
  if (bytes === 0) throw createRequestError("a key must not be empty");
  if (bytes > STORE_LIMITS.key) throw limitError(`key of ${bytes} bytes`, `${STORE_LIMITS.key} bytes`);
  return key;
}

const createRequestError = (message: string): StoreError => new StoreError("REQUEST", `store: ${message}`);
const limitError = (what: string, max: string): StoreError =>
  new StoreError("LIMIT", `store: ${what} exceeds the limit of ${max}`);
