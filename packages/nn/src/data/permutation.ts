// A permutation of any number of rows that needs no memory. The position of each row is computed, so that a resumed
// epoch needs no stored list.

/** Returns the high 32 bits of the product of two 32-bit integers. */
function multiplyHigh(a: number, b: number): number {
  const [aHigh, aLow, bHigh, bLow] = [a >>> 16, a & 0xffff, b >>> 16, b & 0xffff];
  const crossProduct = aHigh * bLow + ((aLow * bLow) >>> 16);
  return (aHigh * bHigh + Math.floor(crossProduct / 0x10000) + (((crossProduct & 0xffff) + aLow * bHigh) >>> 16)) >>> 0;
}

/**
 * Returns the first word of block `index` of Philox4x32-10 (Salmon et al. 2011), which is element 4 · index of the
 * kernel `random`.
 */
export function philoxWord(index: number, seed: number, stream: number): number {
  let [c0, c1, c2, c3] = [index >>> 0, 0, stream >>> 0, 0];
  let [k0, k1] = [seed >>> 0, Math.floor(seed / 2 ** 32)];
  for (let round = 0; round < 10; round++) {
    const [high0, low0] = [multiplyHigh(0xd2511f53, c0), Math.imul(0xd2511f53, c0) >>> 0];
    const [high1, low1] = [multiplyHigh(0xcd9e8d57, c2), Math.imul(0xcd9e8d57, c2) >>> 0];
    [c0, c1, c2, c3] = [(high1 ^ c1 ^ k0) >>> 0, low1, (high0 ^ c3 ^ k1) >>> 0, low0];
    k0 = (k0 + 0x9e3779b9) >>> 0;
    k1 = (k1 + 0xbb67ae85) >>> 0;
  }
  return c0;
}

/** Number of rounds of the Feistel network. Four already give a pseudorandom permutation (Luby and Rackoff 1988). */
const NUM_ROUNDS = 6;

/** Parameters that determine a permutation. */
export interface PermutationKey {
  readonly count: number;
  readonly seed: number;
  readonly epoch: number;
}

/**
 * Returns the image of `index` in a permutation of `count` indices: a Feistel network over the next even power of two,
 * iterated until the result is below `count` (cycle walking, Black and Rogaway 2002), fewer than four times on average.
 */
export function permute(index: number, { count, seed, epoch }: PermutationKey): number {
  const halfBits = Math.max(1, Math.ceil(Math.log2(Math.max(2, count)) / 2));
  const halfRange = 2 ** halfBits;
  let permutedIndex = index;
  do {
    let [left, right] = [Math.floor(permutedIndex / halfRange), permutedIndex % halfRange];
    for (let round = 0; round < NUM_ROUNDS; round++) {
      // Each round of each epoch has its own stream.
      const word = philoxWord(right, seed, epoch * NUM_ROUNDS + round);
      [left, right] = [right, left ^ (word % halfRange)];
    }
    permutedIndex = left * halfRange + right;
  } while (permutedIndex >= count);
  return permutedIndex;
}
