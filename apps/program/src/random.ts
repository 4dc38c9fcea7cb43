/** Numbers that depend on the seeds alone: mulberry32, whose state begins with a mix of them. */
export class Random {
  #state: number;

  constructor(...seeds: readonly number[]) {
    this.#state = seeds.reduce((state, seed) => mixBits(Math.imul(state ^ (seed >>> 0), 0x9e3779b1) + 0x7f4a7c15), 1);
  }

  /** From 0 to below 1. */
  uniform(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    return mixBits(this.#state) / 2 ** 32;
  }

  /** An integer from 0 to below `end`. */
  integer(end: number): number {
    return Math.floor(this.uniform() * end);
  }

  /** The numbers from 0 to below `end`, in any order. */
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
