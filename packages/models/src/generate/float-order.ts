// Selecting and sorting float32 by radix, in linear time. Sorting a vocabulary of 128 k by comparisons takes longer than
// a decode step of a small model.

interface DigitBits {
  readonly shift: number;
  readonly mask: number;
}

/** Bits of the three digits of a key, from the lowest. */
const DIGITS: readonly DigitBits[] = [
  { shift: 0, mask: 0x7ff },
  { shift: 11, mask: 0x7ff },
  { shift: 22, mask: 0x3ff },
];

/** Length below which sorting by comparisons is faster. */
const MIN_RADIX_LENGTH = 512;

/** Returns keys, unsigned integers in the opposite order of the values: the largest value has the smallest key. */
function createKeys(values: Float32Array): Uint32Array<ArrayBuffer> {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  const keys = new Uint32Array(bits.length);
  for (let i = 0; i < bits.length; i++) {
    const each = bits[i]!;
    keys[i] = each >= 0x8000_0000 ? each : ~each & 0x7fff_ffff;
  }
  return keys;
}

/** Replaces keys by their values, in the same memory. */
function toValues(keys: Uint32Array): Float32Array {
  for (let i = 0; i < keys.length; i++) {
    const key = keys[i]!;
    keys[i] = key >= 0x8000_0000 ? key : ~key & 0x7fff_ffff;
  }
  return new Float32Array(keys.buffer, keys.byteOffset, keys.length);
}

/** Returns the values in descending order. They may not be NaN. */
export function sortDescending(values: Float32Array): Float32Array {
  if (values.length < MIN_RADIX_LENGTH) return values.toSorted().reverse();
  let keys = createKeys(values);
  let sortedKeys = new Uint32Array(keys.length);
  for (const { shift, mask } of DIGITS) {
    const positions = countDigits(keys, { shift, mask });
    let position = 0;
    for (let digit = 0; digit <= mask; digit++) {
      const count = positions[digit]!;
      positions[digit] = position;
      position += count;
    }
    for (let i = 0; i < keys.length; i++) {
      const key = keys[i]!;
      sortedKeys[positions[(key >>> shift) & mask]!++] = key;
    }
    [keys, sortedKeys] = [sortedKeys, keys];
  }
  return toValues(keys);
}

/** Returns the k-th largest value, 1 ≤ k ≤ length. Values may not be NaN. */
export function selectKthLargest(values: Float32Array, k: number): number {
  if (values.length < MIN_RADIX_LENGTH) return values.toSorted()[values.length - k]!;
  let keys = createKeys(values);
  let rank = k;
  for (const digitBits of [...DIGITS].reverse()) {
    const counts = countDigits(keys, digitBits);
    let digit = 0;
    while (rank > counts[digit]!) rank -= counts[digit++]!;
    const { shift, mask } = digitBits;
    const remainingKeys = new Uint32Array(counts[digit]!);
    let count = 0;
    for (let i = 0; i < keys.length; i++)
      if (((keys[i]! >>> shift) & mask) === digit) remainingKeys[count++] = keys[i]!;
    keys = remainingKeys;
  }
  return toValues(keys)[0]!;
}

function countDigits(keys: Uint32Array, { shift, mask }: DigitBits): Uint32Array {
  const counts = new Uint32Array(mask + 1);
  for (let i = 0; i < keys.length; i++) counts[(keys[i]! >>> shift) & mask]!++;
  return counts;
}
