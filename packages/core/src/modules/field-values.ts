/** Returns the values of an array, a map, a set or a plain object, or else the value itself. */
export function listValues(value: unknown): readonly unknown[] {
  if (Array.isArray(value)) return value;
  if (value instanceof Map || value instanceof Set) return [...value.values()];
  const isPlainObject =
    typeof value === "object" && value !== null && Object.getPrototypeOf(value) === Object.prototype;
  return isPlainObject ? Object.values(value) : [value];
}
