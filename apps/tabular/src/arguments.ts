/** Parses an integer from `min` to `max` of the command line. Throws an Error that reports what was expected. */
export function parseInteger(name: string, text: string, [min, max]: readonly [number, number]): number {
  const value = Number(text);
  if (/^\d+$/.test(text) && value >= min && value <= max) return value;
  const range = max === Number.MAX_SAFE_INTEGER ? `from ${min}` : `from ${min} to ${max}`;
  throw new Error(`${name}: expected an integer ${range}, received "${text}"`);
}
