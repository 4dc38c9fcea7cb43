/** A hash and one more number, as a hash of both. */
export function mixed(hash: number, number: number): number {
  const high = Math.imul(hash ^ (hash >>> 15) ^ (number | 0), 0x2c1b_3c6d);
  return (high ^ (high >>> 13)) >>> 2;
}
