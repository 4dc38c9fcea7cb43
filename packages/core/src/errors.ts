/** Details of a Mosaic error: where it happened, what was expected, what was received, and what to do. */
export interface ErrorDetails {
  /** The call and, if it matters, the rank: `ring(sp), rank 3`. */
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
 * Formats any value as short text for error messages. Never throws.
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
    // A bundler may rename a class that refers to itself, for example to `_Tensor`.
    if (typeof name === "string" && name !== "" && name !== "Object") return addArticle(name.replace(/^_+/, ""));
    const keys = Object.keys(value);
    return keys.length > 0 ? `an object with ${keys.slice(0, 8).join(", ")}` : "an empty object";
  } catch {
    return "an object";
  }
}

function addArticle(className: string): string {
  return `${/^[AEIO]/.test(className) ? "an" : "a"} ${className}`;
}

/** The page of causes and remedies, which the package contains. */
const TROUBLESHOOTING_PAGE = "node_modules/@mosaic/core/dist/troubleshooting.md";

/**
 * Base class of all errors that Mosaic throws on purpose.
 *
 * @example
 * ```ts
 * import { MosaicError } from "@mosaic/core";
 * const error = new MosaicError({ where: "reshape", expected: "6 elements", received: "[4]", remedy: "keep the size" });
 * error.message; // => "reshape: expected 6 elements, received [4]; keep the size"
 * error.help; // => "node_modules/@mosaic/core/dist/troubleshooting.md#mosaicerror"
 * ```
 */
export class MosaicError extends Error {
  declare readonly details: ErrorDetails;
  /**
   * Path, in the folder of the project, and anchor of the documentation of this error class, with causes and remedies.
   * Not part of the message.
   */
  declare readonly help: string;
  constructor(details: ErrorDetails | string, options?: ErrorOptions) {
    super(typeof details === "string" ? details : formatMessage(details), options);
    this.name = new.target.name;
    // Not enumerable, because Node prints enumerable properties below the message, which already contains them.
    const properties = {
      details: typeof details === "string" ? { where: details } : details,
      help: `${TROUBLESHOOTING_PAGE}#${this.name.toLowerCase()}`,
    };
    for (const [name, value] of Object.entries(properties))
      Object.defineProperty(this, name, { value, writable: true, configurable: true });
  }
}

/** A shape, an axis or a size does not match. */
export class ShapeError extends MosaicError {}
/** A dtype does not match. */
export class DTypeError extends MosaicError {}
/** An unknown option, an invalid combination of options, or an argument of the wrong type. */
export class OptionError extends MosaicError {}
/** A backward cannot run: nothing was recorded, it has already run, or a gradient does not match. */
export class AutogradError extends MosaicError {}
/** A tensor was used after it was disposed. */
export class DisposedError extends MosaicError {}
/** A context, group or device was used after it was closed. */
export class ClosedError extends MosaicError {}
/** Asynchronous work on a device failed; names the operation that caused it. */
export class DeviceError extends MosaicError {}
/** The device has not enough memory for an allocation. */
export class OutOfMemoryError extends MosaicError {}
/** A rank of the group died or left while others still needed it. */
export class PeerLostError extends MosaicError {}
/** A collective did not complete in time; the message gives each rank's position. */
export class CollectiveTimeoutError extends MosaicError {}
/**
 * Ranks called different collectives, or the same one with different shapes or dtypes; found by the engine of
 * @mosaic/runtime, and by functions that exchange values, such as `allGatherObject`.
 */
export class CollectiveMismatchError extends MosaicError {}
/** A native addon could not be loaded; the message lists likely causes and the remedy. */
export class AddonLoadError extends MosaicError {}

/**
 * Checks an argument, for callers that do not use a type checker. `where` is the caller's name in errors.
 *
 * @example
 * ```ts
 * import { expectValue } from "@mosaic/core";
 * const size = 0;
 * expectValue("myOp: size", size >= 1, "an integer ≥ 1", size); // throws expected an integer ≥ 1, received 0
 * ```
 * @throws OptionError unless `isValid`.
 */
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

/**
 * Checks an argument that must be a function. `where` is the caller's name in errors.
 *
 * @example
 * ```ts
 * import { checkFunction } from "@mosaic/core";
 * checkFunction("myOp: body", 1); // throws myOp: body: expected a function, received 1
 * ```
 * @throws OptionError unless it is one.
 */
export function checkFunction(where: string, f: unknown): void {
  expectValue(where, typeof f === "function", "a function", f);
}

/** Error classes in the order of `MosaicFailureCode` in include/mosaic/stream.h. */
const errorsByCode = [
  MosaicError,
  DeviceError,
  PeerLostError,
  CollectiveTimeoutError,
  CollectiveMismatchError,
  ClosedError,
  OutOfMemoryError,
] as const;

/**
 * Converts a native `MosaicFailure` to the error class of its code, and parses its text into details.
 *
 * @example
 * ```ts
 * import { errorFromFailure } from "@mosaic/core";
 * errorFromFailure(3, "timed out after 300 s").name; // => "CollectiveTimeoutError"
 * ```
 */
export function errorFromFailure(code: number, message: string): MosaicError {
  const nativeMessage = typeof message === "string" ? message : formatValue(message);
  const hint = findHint(nativeMessage);
  const text = hint === undefined ? nativeMessage : `${nativeMessage}; ${hint}`;
  const error: MosaicError = new ((typeof code === "number" ? errorsByCode[code] : undefined) ?? DeviceError)(text);
  (error as { details: ErrorDetails }).details = parseDetails(text);
  return error;
}

/** Returns a hint that native code cannot give: which option or layer of a program leads to such a failure. */
function findHint(text: string): string | undefined {
  const index = /\b(?:gatherRows|scatterAddRows): expected integers from 0 to (\d+),/.exec(text);
  if (index) {
    const lastIndex = Number(index[1]);
    return `in an Embedding, the indices are token ids and the table has ${lastIndex + 1} rows: enlarge the table, or correct the token ids`;
  }
  if (/\bout of memory for \d+ bytes of receive buffers/.test(text))
    return "dispose tensors, use smaller batches, or raise the memoryLimit of the device";
  // For two mismatched calls: whether their rows, queries or keys have different lengths.
  const lengths = [...text.matchAll(/\b(rows|queries|keys) (\d+) over /g)];
  const haveDifferentLengths = lengths.some(([, kind, length]) =>
    lengths.some((each) => each[1] === kind && each[2] !== length),
  );
  if (haveDifferentLengths) return "if shards are unequal, pass sequenceLength to the module";
  if (!text.startsWith("unshard: ")) return undefined;
  // For two calls of `unshard`: whether their shards have different shapes, as without `length`.
  const shapes = [...text.matchAll(/\ballGather #\d+ \([^)]*\) \w+ (\[[\d,]*\])/g)].map((match) => match[1]);
  if (new Set(shapes).size < 2) return undefined;
  return "if shards are unequal, pass length, the length of the whole axis, to unshard";
}

/**
 * Parses a text of the form `where: expected …, received …; remedy`, or the positions of two ranks. Any other text
 * becomes `where`.
 */
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
