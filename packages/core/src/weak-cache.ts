/**
 * Values by an object and a key, which live as long as the object. Equal keys of one object share a value, because
 * further values are cached by its identity. An object that has `maxValues` values loses all of them before the next
 * one is added, which changes no result.
 */
export class WeakCache<Owner extends object, Key extends string | number, Value> {
  readonly #valuesByOwner = new WeakMap<Owner, Map<Key, Value>>();
  readonly #maxValues: number;

  constructor(maxValues: number) {
    this.#maxValues = maxValues;
  }

  /** Returns the value of a key, which `create` makes the first time. If that throws, nothing is cached. */
  getOrCreate(owner: Owner, key: Key, create: () => Value): Value {
    const values = this.#valuesByOwner.get(owner) ?? new Map<Key, Value>();
    const cachedValue = values.get(key);
    if (cachedValue !== undefined) return cachedValue;
    const value = create();
    if (values.size >= this.#maxValues) values.clear();
    this.#valuesByOwner.set(owner, values.set(key, value));
    return value;
  }
}
