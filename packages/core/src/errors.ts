/** What every Mosaic error states: where it happened, what was expected, what came, and what to do. */
export interface ErrorDetails {
  /** The call and, where it matters, the rank: `ring(sp), rank 3`. */
  readonly where: string;
  readonly expected?: string;
  readonly received?: string;
  readonly remedy?: string;
}

function formatMessage({ where, expected, received, remedy }: ErrorDetails): string {
  const details = [expected && `expected ${expected}`, received && `received ${received}`].filter(Boolean).join(", ");
  return `${typeof where === "string" ? where : formatValue(where)}: ${[details, remedy].filter(Boolean).join("; ")}`;
}

/**
 * Any value, short, as messages show what they received: never throws, whatever it is given.
 *
 * @example
 * ```ts
 * import { formatValue } from "@mosaic/core";
 * [formatValue("sp"), formatValue([2, NaN]), formatValue({ a: 1 })]; // => ['"sp"', "[2,NaN]", "an object with a"]
 * [formatValue(undefined), formatValue(new Map()), formatValue(Math.sqrt)]; // => ["undefined", "a Map", "a function"]
 * ```
 */
export function formatValue(value: unknown): string {
  if (typeof value === "string") return JSON.stringify(value.length > 60 ? `${value.slice(0, 60)}…` : value);
  if (typeof value === "bigint") return `${value}n`;
  if (typeof value === "function") return "a function";
  if (typeof value !== "object" || value === null) return String(value);
  try {
    if (Array.isArray(value)) {
      const shownItems = value.slice(0, 8).map((each: unknown) => (Array.isArray(each) ? "[…]" : formatValue(each)));
      return `[${shownItems.join(",")}${value.length > 8 ? ",…" : ""}]`;
    }
    const name: unknown = (Object.getPrototypeOf(value) as object | null)?.constructor?.name;
    // A bundler may rename a class that refers to itself: `_Tensor`.
    if (typeof name === "string" && name !== "" && name !== "Object") return `a ${name.replace(/^_+/, "")}`;
    const keys = Object.keys(value);
    return keys.length > 0 ? `an object with ${keys.slice(0, 8).join(", ")}` : "an empty object";
  } catch {
    return "an object";
  }
}

/**
 * The root of all errors that Mosaic throws on purpose.
 *
 * @example
 * ```ts
 * import { MosaicError } from "@mosaic/core";
 * const error = new MosaicError({ where: "reshape", expected: "6 elements", received: "[4]", remedy: "keep the size" });
 * error.message; // => "reshape: expected 6 elements, received [4]; keep the size"
 * error.help; // => "docs/troubleshooting.md#mosaicerror"
 * ```
 */
export class MosaicError extends Error {
  declare readonly details: ErrorDetails;
  /** Where the documentation has the causes and remedies of this class, a path and an anchor; no part of the message. */
  declare readonly help: string;
  constructor(details: ErrorDetails | string, options?: ErrorOptions) {
    super(typeof details === "string" ? details : formatMessage(details), options);
    this.name = new.target.name;
    // Not enumerable: Node prints enumerable properties below the message, which has all of it.
    const properties = {
      details: typeof details === "string" ? { where: details } : details,
      help: `docs/troubleshooting.md#${this.name.toLowerCase()}`,
    };
    for (const [name, value] of Object.entries(properties))
      Object.defineProperty(this, name, { value, writable: true, configurable: true });
  }
}

/** A shape, an axis or a size that does not fit. */
export class ShapeError extends MosaicError {}
/** A dtype that does not fit. */
export class DTypeError extends MosaicError {}
/** An option, or a combination of options, that does not exist; an argument that is not of its kind. */
export class OptionError extends MosaicError {}
/** A backward that cannot run: nothing was recorded, it has run already, or a gradient does not fit. */
export class AutogradError extends MosaicError {}
/** A tensor used after it was disposed. */
export class DisposedError extends MosaicError {}
/** A context, group or device used after it was closed. */
export class ClosedError extends MosaicError {}
/** Asynchronous work on a device failed; names the operation that caused it. */
export class DeviceError extends MosaicError {}
/** The device has no memory left for an allocation. */
export class OutOfMemoryError extends MosaicError {}
/** A rank of the group died or left while others still needed it. */
export class PeerLostError extends MosaicError {}
/** A collective did not complete in time; the message gives each rank's position. */
export class CollectiveTimeoutError extends MosaicError {}
/** Ranks called different collectives, or the same one with different shapes or dtypes; found by the engine of @mosaic/runtime. */
export class CollectiveMismatchError extends MosaicError {}
/** A native addon could not be loaded; the message lists likely causes and the remedy. */
export class AddonLoadError extends MosaicError {}

/** Throws an OptionError unless an argument is what was expected: for what callers without types may pass. */
// oxlint-disable-next-line max-params -- the parts of a message
export function expectValue(
  where: string,
  isValid: boolean,
  expected: string,
  received: unknown,
  remedy?: string,
): void {
  if (isValid) return;
  throw new OptionError({ where, expected, received: formatValue(received), ...(remedy !== undefined && { remedy }) });
}

/** Throws an OptionError unless `f` is a function. */
export function checkFunction(where: string, f: unknown): void {
  expectValue(where, typeof f === "function", "a function", f);
}

/** The codes of `MosaicFailureCode` in include/mosaic/stream.h, in order. */
const errorsByCode = [
  MosaicError,
  DeviceError,
  PeerLostError,
  CollectiveTimeoutError,
  CollectiveMismatchError,
  ClosedError,
  OutOfMemoryError,
] as const;

/** Turns a native `MosaicFailure` into the error class that its code stands for, its text into details. */
export function errorFromFailure(code: number, message: string): MosaicError {
  const nativeMessage = typeof message === "string" ? message : formatValue(message);
  const hint = findHint(nativeMessage);
  const text = hint === undefined ? nativeMessage : `${nativeMessage}; ${hint}`;
  const error: MosaicError = new ((typeof code === "number" ? errorsByCode[code] : undefined) ?? DeviceError)(text);
  (error as { details: ErrorDetails }).details = parseDetails(text);
  return error;
}

/** What native code cannot know: which option or layer of a program leads to such a failure. */
function findHint(text: string): string | undefined {
  const index = /\b(?:gatherRows|scatterAddRows): expected integers from 0 to (\d+),/.exec(text);
  if (index) {
    const lastIndex = Number(index[1]);
    return `in an Embedding, the indices are token ids and the table has ${lastIndex + 1} rows: enlarge the table, or correct the token ids`;
  }
  // Of two calls that differ: whether their rows, queries or keys have different lengths.
  const lengths = [...text.matchAll(/\b(rows|queries|keys) (\d+) over /g)];
  const haveDifferentLengths = lengths.some(([, kind, length]) =>
    lengths.some((each) => each[1] === kind && each[2] !== length),
  );
  if (!haveDifferentLengths) return undefined;
  return "if shards are unequal, pass sequenceLength to the module";
}

/** The details of a text of the form `where: expected …, received …; remedy`, or of what two ranks were at; else all of it is `where`. */
function parseDetails(text: string): ErrorDetails {
  const [, where, detailText = ""] = /^(.*?): ((?:expected|received|rank \d+ is at) .*)$/s.exec(text) ?? [];
  if (where === undefined) return { where: text };
  const [, body = detailText, remedy] = /^(.*?); (.*)$/s.exec(detailText) ?? [];
  const [, expected, received = body] = /^expected (.*?)(?:, received (.*))?$/s.exec(body) ?? [];
  return {
    where,
    ...(expected !== undefined && { expected }),
    ...(!(expected !== undefined && received === body) && { received: received.replace(/^received /, "") }),
    ...(remedy !== undefined && { remedy }),
  };
}
