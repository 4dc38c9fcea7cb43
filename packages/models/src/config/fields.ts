import { formatValue } from "@mosaic/core";
import { FileError } from "@mosaic/nn";

/** Contents of a JSON file: an object whose fields are checked when they are read. */
export type Json = Readonly<Record<string, unknown>>;

export function isJsonObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

const typeChecks = {
  "a number > 0": (value: unknown) => Number.isFinite(value) && (value as number) > 0,
  "a number ≥ 1": (value: unknown) => Number.isFinite(value) && (value as number) >= 1,
  "a number ≥ 0": (value: unknown) => Number.isFinite(value) && (value as number) >= 0,
  "a number": (value: unknown) => Number.isFinite(value),
  "an integer": (value: unknown) => Number.isSafeInteger(value),
  "a number from 0 to 1": (value: unknown) =>
    Number.isFinite(value) && (value as number) >= 0 && (value as number) <= 1,
  "an integer ≥ 0": (value: unknown) => Number.isSafeInteger(value) && (value as number) >= 0,
  "an integer ≥ 1": (value: unknown) => Number.isSafeInteger(value) && (value as number) >= 1,
  "a boolean": (value: unknown) => typeof value === "boolean",
  "a string": (value: unknown) => typeof value === "string",
  "an array of strings": (value: unknown) => Array.isArray(value) && value.every((each) => typeof each === "string"),
};

/**
 * The fields of one JSON object of a file. Null is treated as absent. The methods throw a FileError for a value of
 * another type.
 */
export class Fields {
  readonly #where: string;
  readonly #json: Json;

  constructor(where: string, json: Json) {
    this.#where = where;
    this.#json = json;
  }

  /** Reads a field of the given kind. Without a fallback the field is required. */
  #read(name: string, kind: keyof typeof typeChecks, fallback: unknown): unknown {
    const value = this.#json[name] ?? fallback;
    if (value === null || (value !== undefined && typeChecks[kind](value))) return value;
    throw this.error(
      name,
      kind,
      value === undefined ? "add the field: this model type requires it" : "correct the file",
    );
  }

  /** Creates the error for a field. */
  error(name: string, expected: string, remedy: string): FileError {
    return new FileError({
      where: `${this.#where}: ${name}`,
      expected,
      received: formatValue(this.#json[name]),
      remedy,
    });
  }

  /** Returns whether the field is null, as opposed to absent. For some fields, null disables a feature. */
  isNull(name: string): boolean {
    return this.#json[name] === null;
  }

  number<F extends number | null = never>(name: string, fallback?: F): number | F {
    return this.#read(name, "a number > 0", fallback) as number | F;
  }

  /** Reads a number of any sign. */
  signedNumber(name: string, fallback: number): number {
    return this.#read(name, "a number", fallback) as number;
  }

  /** Reads an integer of any sign. */
  signedInteger(name: string, fallback: number): number {
    return this.#read(name, "an integer", fallback) as number;
  }

  /** Reads a number ≥ 0. */
  nonNegative<F extends number | null>(name: string, fallback: F): number | F {
    return this.#read(name, "a number ≥ 0", fallback) as number | F;
  }

  /** Reads a number ≥ 1. */
  factor(name: string, fallback?: number): number {
    return this.#read(name, "a number ≥ 1", fallback) as number;
  }

  /** Reads a number from 0 to 1. */
  fraction(name: string, fallback: number): number {
    return this.#read(name, "a number from 0 to 1", fallback) as number;
  }

  /** Reads an integer ≥ 1. */
  size<F extends number | null = never>(name: string, fallback?: F): number | F {
    return this.#read(name, "an integer ≥ 1", fallback) as number | F;
  }

  /** Reads an integer ≥ 0. */
  count(name: string, fallback: number): number {
    return this.#read(name, "an integer ≥ 0", fallback) as number;
  }

  boolean(name: string, fallback: boolean): boolean {
    return this.#read(name, "a boolean", fallback) as boolean;
  }

  string<F extends string | null = never>(name: string, fallback?: F): string | F {
    return this.#read(name, "a string", fallback) as string | F;
  }

  strings<F extends readonly string[] | null = never>(name: string, fallback?: F): readonly string[] | F {
    return this.#read(name, "an array of strings", fallback) as readonly string[] | F;
  }

  /** Reads an object, or undefined if there is none. */
  object(name: string): Json | undefined {
    const value = this.#json[name] ?? undefined;
    if (value === undefined || isJsonObject(value)) return value;
    throw this.error(name, "an object", "correct the file");
  }

  /** Reads one of the given strings. */
  oneOf<V extends string>(name: string, values: readonly V[], fallback: V): V {
    const value = this.string(name, fallback);
    if ((values as readonly string[]).includes(value)) return value as V;
    throw this.error(name, `one of ${values.join(", ")}`, "other values are not supported");
  }
}
