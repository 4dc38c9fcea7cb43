/** An integer from `least` to `most` off the command line. Throws an Error that reports what was expected. */
export function parseInteger(name: string, text: string, [least, most]: readonly [number, number]): number {
  const value = Number(text);
  if (/^\d+$/.test(text) && value >= least && value <= most) return value;
  const range = most === Number.MAX_SAFE_INTEGER ? `from ${least}` : `from ${least} to ${most}`;
  throw new Error(`${name}: expected an integer ${range}, received "${text}"`);
}
