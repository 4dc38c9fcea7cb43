import { STORE_LIMITS, StoreError } from "./protocol.ts";

/** Stops waiting. May be called more than once. */
export type CancelCallback = () => void;

/**
 * The keys of one attempt. It is independent of sockets: waiting uses callbacks, and all methods report errors by
 * throwing.
 */
export class StoreTable {
  readonly #values = new Map<string, Buffer>();
  readonly #watchers = new Map<string, Set<() => void>>();
  #totalBytes = 0;

  get(key: string): Buffer | undefined {
    return this.#values.get(checkKey(key));
  }

  set(key: string, value: Buffer): void {
    checkKey(key);
    const previousValue = this.#values.get(key);
    const newTotalBytes = this.#totalBytes + value.length - (previousValue?.length ?? 0);
    if (value.length > STORE_LIMITS.value)
      throw limitError(`value of ${value.length} bytes`, `${STORE_LIMITS.value} bytes`);
    if (newTotalBytes > STORE_LIMITS.total)
      throw limitError(
        `total of ${newTotalBytes} bytes`,
        `${STORE_LIMITS.total} bytes; delete keys that are no longer used`,
      );
    if (previousValue === undefined && this.#values.size >= STORE_LIMITS.keys)
      throw limitError(
        `total of ${STORE_LIMITS.keys + 1} keys`,
        `${STORE_LIMITS.keys} keys; delete keys that are no longer used`,
      );
    this.#values.set(key, Buffer.from(value));
    this.#totalBytes = newTotalBytes;
    if (previousValue === undefined) for (const notify of [...(this.#watchers.get(key) ?? [])]) notify();
  }

  /** Adds to a counter that starts at 0, and returns the sum. */
  add(key: string, delta: number): number {
    if (!Number.isSafeInteger(delta))
      throw createRequestError(`add: delta: expected a safe integer, received ${delta}`);
    const previousValue = this.get(key)?.toString() ?? "0";
    const sum = Number(previousValue) + delta;
    if (!/^-?\d+$/.test(previousValue) || !Number.isSafeInteger(sum))
      throw createRequestError(
        `add "${key}": expected an integer whose sum with ${delta} is a safe integer, ` +
          `received ${JSON.stringify(previousValue.slice(0, 40))}`,
      );
    this.set(key, Buffer.from(String(sum)));
    return sum;
  }

  /** Replaces `expected` (undefined: absent) by `value`. Returns whether it was replaced, and the current value. */
  compareAndSet(key: string, expected: Buffer | undefined, value: Buffer): { swapped: boolean; current?: Buffer } {
    const current = this.get(key);
    const isExpected =
      current === undefined || expected === undefined ? current === expected : current.equals(expected);
    if (isExpected) this.set(key, value);
    const resultingValue = this.get(key);
    return resultingValue === undefined ? { swapped: isExpected } : { swapped: isExpected, current: resultingValue };
  }

  delete(key: string): boolean {
    this.#totalBytes -= this.get(key)?.length ?? 0;
    return this.#values.delete(key);
  }

  /** Calls `onReady` once, as soon as all keys exist; immediately if they already exist. */
  waitForKeys(keys: readonly string[], onReady: () => void): CancelCallback {
    const missingKeys = new Map<string, () => void>();
    const cancel = (): void => {
      for (const [key, notify] of missingKeys) this.#unwatch(key, notify);
      missingKeys.clear();
    };
    for (const key of new Set(keys)) {
      if (this.get(key) !== undefined) continue;
      const notify = (): void => {
        this.#unwatch(key, notify);
        missingKeys.delete(key);
        if (missingKeys.size === 0) onReady();
      };
      missingKeys.set(key, notify);
    }
    for (const [key, notify] of missingKeys) this.#watch(key, notify);
    if (missingKeys.size === 0) onReady();
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

/** Returns a key of valid length. Throws StoreError for any other. */
export function checkKey(key: string): string {
  const bytes = Buffer.byteLength(key);
  if (bytes === 0) throw createRequestError(`key: expected 1 to ${STORE_LIMITS.key} bytes, received 0 bytes`);
  if (bytes > STORE_LIMITS.key) throw limitError(`key of ${bytes} bytes`, `${STORE_LIMITS.key} bytes`);
  return key;
}

const createRequestError = (message: string): StoreError => new StoreError("REQUEST", `store: ${message}`);
const limitError = (subject: string, max: string): StoreError =>
  new StoreError("LIMIT", `store: ${subject} exceeds the limit of ${max}`);
