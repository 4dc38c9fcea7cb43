import { UsageError } from "../errors.ts";
import { parseFlag } from "../flag-text.ts";
import { MAX_TIMER_MS } from "../launch-plan.ts";
import type { SourcedValue } from "./sources.ts";

/** Parses the values of options. Errors name the source of the value. */
export class OptionValues {
  readonly #sources: ReadonlyMap<string, SourcedValue>;

  constructor(sources: ReadonlyMap<string, SourcedValue>) {
    this.#sources = sources;
  }

  flag(name: string): boolean {
    const value = parseFlag(this.text(name) ?? "");
    if (value === undefined) throw this.invalidValueError(name, "true or false");
    return value;
  }

  text(name: string): string | undefined {
    const value = this.#sources.get(name)?.value;
    return value === undefined ? undefined : String(value);
  }

  list(name: string): readonly string[] {
    const value = this.#sources.get(name)?.value;
    return Array.isArray(value) ? value : [];
  }

  /** Returns an integer from `min` to `max`, or undefined when the option is not set. */
  count(name: string, min: number, max: number = Number.MAX_SAFE_INTEGER): number | undefined {
    const value = this.text(name);
    if (value === undefined) return undefined;
    const count = Number(value);
    if (/^\d+$/.test(value) && count >= min && count <= max) return count;
    const rangeText = max === Number.MAX_SAFE_INTEGER ? `an integer ≥ ${min}` : `an integer from ${min} to ${max}`;
    throw this.invalidValueError(name, rangeText);
  }

  /**
   * Parses `500ms`, `30s`, `2m`, `1h` or a number of seconds into milliseconds. Returns undefined when the option is
   * not set.
   */
  durationMs(name: string): number | undefined {
    const value = this.text(name);
    if (value === undefined) return undefined;
    const match = /^(\d+(?:\.\d+)?)(ms|s|m|h)?$/.exec(value);
    if (match === null) throw this.invalidValueError(name, "a time such as 500ms, 30s or 2m");
    const ms = Number(match[1]) * ({ ms: 1, s: 1000, m: 60_000, h: 3_600_000 }[match[2] ?? "s"] ?? 1000);
    if (ms > MAX_TIMER_MS)
      throw this.invalidValueError(name, `a time of at most ${Math.floor(MAX_TIMER_MS / 3_600_000)}h`);
    return ms;
  }

  choice<T extends string>(name: string, choices: readonly T[]): T {
    const value = this.text(name);
    const chosenValue = choices.find((choice) => choice === value);
    if (chosenValue === undefined) throw this.invalidValueError(name, choices.join(", "));
    return chosenValue;
  }

  /** Returns the error for an invalid value, with the option, the expected and the received value, and its source. */
  invalidValueError(name: string, expected: string): UsageError {
    const { value, source } = this.#sources.get(name) ?? { value: undefined, source: "default" };
    const sourceText = source === `--${name}` ? "" : ` (from ${source})`;
    const valueText = value === undefined ? "nothing" : JSON.stringify(value);
    return new UsageError(
      `--${name}: expected ${expected}, received ${valueText}${source === "default" ? "" : sourceText}`,
    );
  }

  /** Returns the source of a value: a flag, a variable, the file, or `default`. */
  source(name: string): string {
    return this.#sources.get(name)?.source ?? "default";
  }
}
