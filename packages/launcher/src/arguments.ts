import { inspect } from "node:util";

/** Run-time check of an argument, for callers that the compiler does not check. */
export interface ArgumentKind {
  readonly expected: string;
  accepts(value: unknown): boolean;
}

const kind = (expected: string, accepts: ArgumentKind["accepts"]): ArgumentKind => ({ expected, accepts });
const isString = (value: unknown): boolean => typeof value === "string";

/** Kinds of arguments. The range of a number is checked where the number is used. */
export const argument = {
  string: kind("a string", isString),
  strings: kind("an array of strings", (value) => Array.isArray(value) && value.every(isString)),
  stringRecord: kind(
    "an object with string values",
    (value) => isObject(value) && Object.values(value).every(isString),
  ),
  boolean: kind("true or false", (value) => typeof value === "boolean"),
  number: kind("a number", (value) => typeof value === "number"),
  callback: kind("a function", (value) => typeof value === "function"),
  options: kind("an options object", isObject),
  bytes: kind("a Uint8Array", (value) => value instanceof Uint8Array),
  bytesOrString: kind("a Uint8Array or a string", (value) => isString(value) || value instanceof Uint8Array),
} as const;

function isObject(value: unknown): value is object {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/**
 * Returns the text of the error for a value of another kind, such as "expected a string, received 3"; undefined if it
 * matches.
 */
export function mismatch({ expected, accepts }: ArgumentKind, value: unknown): string | undefined {
  if (accepts(value)) return undefined;
  return `expected ${expected}, received ${inspect(value, { depth: 0, breakLength: Infinity }).slice(0, 200)}`;
}
