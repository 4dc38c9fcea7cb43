import { formatValue } from "@mosaic/core";
import { FileError } from "@mosaic/nn";

/** What a JSON file holds: an object whose fields are checked when they are read. */
export type Json = Readonly<Record<string, unknown>>;

export function isJsonObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

const typeChecks = {
  "a number > 0": (value: unknown) => Number.isFinite(value) && (value as number) > 0,
  "a number from 0 to 1": (value: unknown) =>
    Number.isFinite(value) && (value as number) >= 0 && (value as number) <= 1,
  "an integer ≥ 0": (value: unknown) => Number.isSafeInteger(value) && (value as number) >= 0,
  "an integer ≥ 1": (value: unknown) => Number.isSafeInteger(value) && (value as number) >= 1,
  "a boolean": (value: unknown) => typeof value === "boolean",
  "a string": (value: unknown) => typeof value === "string",
  "an array of strings": (value: unknown) => Array.isArray(value) && value.every((each) => typeof each === "string"),
};

/** The fields of one JSON object of a file; null is as good as absent. Each throws a FileError for a value of another kind. */
export class Fields {
  readonly #where: string;
  readonly #json: Json;

  constructor(where: string, json: Json) {
    this.#where = where;
    this.#json = json;
  }

  /** A field of that kind; without a fallback it is required. */
  #read(name: string, kind: keyof typeof typeChecks, fallback: unknown): unknown {
    const value = this.#json[name] ?? fallback;
    if (value === null || (value !== undefined && typeChecks[kind](value))) return value;
    throw this.error(
      name,
      kind,
      value === undefined ? "add the field: this model type requires it" : "correct the file",
    );
  }

  /** What to throw for a field. */
  error(name: string, expected: string, remedy: string): FileError {
    return new FileError({
      where: `${this.#where}: ${name}`,
      expected,
      received: formatValue(this.#json[name]),
      remedy,
    });
  }

  /** Whether the field is null, and not merely absent: in some fields it turns a feature off. */
  isNull(name: string): boolean {
    return this.#json[name] === null;
  }

  number<F extends number | null = never>(name: string, fallback?: F): number | F {
    return this.#read(name, "a number > 0", fallback) as number | F;
  }

  /** A number from 0 to 1. */
  fraction(name: string, fallback: number): number {
    return this.#read(name, "a number from 0 to 1", fallback) as number;
  }

  /** An integer ≥ 1. */
  size<F extends number | null = never>(name: string, fallback?: F): number | F {
    return this.#read(name, "an integer ≥ 1", fallback) as number | F;
  }

  /** An integer ≥ 0. */
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

  /** An object, or undefined if there is none. */
  object(name: string): Json | undefined {
    const value = this.#json[name] ?? undefined;
    if (value === undefined || isJsonObject(value)) return value;
    throw this.error(name, "an object", "correct the file");
  }

  /** One of some strings. */
  oneOf<V extends string>(name: string, values: readonly V[], fallback: V): V {
    const value = this.string(name, fallback);
    if ((values as readonly string[]).includes(value)) return value as V;
    throw this.error(name, `one of ${values.join(", ")}`, "other values are not supported");
  }
}
