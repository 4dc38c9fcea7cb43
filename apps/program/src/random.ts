/** Generator of random numbers that depend on the seeds only: mulberry32, with a hash of the seeds as initial state. */
export class Random {
  #state: number;

  constructor(...seeds: readonly number[]) {
    this.#state = seeds.reduce((state, seed) => mixBits(Math.imul(state ^ (seed >>> 0), 0x9e3779b1) + 0x7f4a7c15), 1);
  }

  /** Returns a uniform number in [0, 1). */
  uniform(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    return mixBits(this.#state) / 2 ** 32;
  }

  /** Returns a random integer in [0, end). */
  integer(end: number): number {
    return Math.floor(this.uniform() * end);
  }

  /** Returns the integers in [0, end) in random order. */
  permutation(end: number): number[] {
    const values = Array.from({ length: end }, (_, i) => i);
    for (let i = end - 1; i > 0; i--) {
      const j = this.integer(i + 1);
      [values[i], values[j]] = [values[j]!, values[i]!];
    }
    return values;
  }
}

function mixBits(value: number): number {
  let z = value >>> 0;
  z = Math.imul(z ^ (z >>> 15), z | 1);
  z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
  return (z ^ (z >>> 14)) >>> 0;
}
