/**
 * Returns the result of an operation; undefined if it throws, for example for a file in a directory that this user may
 * not enter.
 */
export function ignoreErrors<T>(operation: () => T): T | undefined {
  try {
    return operation();
  } catch {
    return undefined;
  }
}
