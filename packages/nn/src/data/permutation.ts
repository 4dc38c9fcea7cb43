// A permutation of any number of rows in memory of none: the place of each row is computed, so that a resumed epoch needs no list.

/** High word of a · b of 32 bits each. */
function multiplyHigh(a: number, b: number): number {
  const [aHigh, aLow, bHigh, bLow] = [a >>> 16, a & 0xffff, b >>> 16, b & 0xffff];
  const crossProduct = aHigh * bLow + ((aLow * bLow) >>> 16);
  return (aHigh * bHigh + Math.floor(crossProduct / 0x10000) + (((crossProduct & 0xffff) + aLow * bHigh) >>> 16)) >>> 0;
}

/** Philox4x32-10 (Salmon et al. 2011), first word of a block: element 4 · index of the kernel `random`. */
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

/** Rounds of the Feistel network; four of them are a pseudorandom permutation already (Luby and Rackoff 1988). */
const NUM_ROUNDS = 6;

/** What a permutation follows from. */
export interface PermutationKey {
  readonly count: number;
  readonly seed: number;
  readonly epoch: number;
}

/**
 * Where `index` goes in a permutation of `count` places: a Feistel network over the next even power of two, walked until it ends
 * below `count` (Black and Rogaway 2002, cycle walking), fewer than four steps on average.
 */
export function permute(index: number, { count, seed, epoch }: PermutationKey): number {
  const halfBits = Math.max(1, Math.ceil(Math.log2(Math.max(2, count)) / 2));
  const halfRange = 2 ** halfBits;
  let permutedIndex = index;
  do {
    let [left, right] = [Math.floor(permutedIndex / halfRange), permutedIndex % halfRange];
    for (let round = 0; round < NUM_ROUNDS; round++) {
      // Streams of a round: those of the epochs, one after another.
      const word = philoxWord(right, seed, epoch * NUM_ROUNDS + round);
      [left, right] = [right, left ^ (word % halfRange)];
    }
    permutedIndex = left * halfRange + right;
  } while (permutedIndex >= count);
  return permutedIndex;
}
