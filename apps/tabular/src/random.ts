/** Generator of random numbers that depend on the seed only: mulberry32. */
export class Random {
  #state: number;
  #cachedNormal: number | undefined;

  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  /** Returns a uniform number in [0, 1). */
  uniform(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let z = Math.imul(this.#state ^ (this.#state >>> 15), this.#state | 1);
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
    return ((z ^ (z >>> 14)) >>> 0) / 2 ** 32;
  }

  /** Returns a random integer from `min` to `max`, both inclusive. */
  integer(min: number, max: number): number {
    return min + Math.floor(this.uniform() * (max - min + 1));
  }

  /** Returns a standard normal number: Box and Muller 1958. */
  normal(): number {
    if (this.#cachedNormal !== undefined) {
      const value = this.#cachedNormal;
      this.#cachedNormal = undefined;
      return value;
    }
    const radius = Math.sqrt(-2 * Math.log(1 - this.uniform()));
    const angle = 2 * Math.PI * this.uniform();
    this.#cachedNormal = radius * Math.sin(angle);
    return radius * Math.cos(angle);
  }

  choice<T>(items: readonly T[]): T {
    return items[this.integer(0, items.length - 1)]!;
  }

  /** Returns 0 … count − 1 in random order: Fisher and Yates. */
  permutation(count: number): number[] {
    const order = Array.from({ length: count }, (_, i) => i);
    for (let i = count - 1; i > 0; i--) {
      const j = this.integer(0, i);
      [order[i], order[j]] = [order[j]!, order[i]!];
    }
    return order;
  }
}
