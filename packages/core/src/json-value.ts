import { expectValue, formatValue, OptionError } from "./errors.ts";

/**
 * Throws an OptionError that names the path of a value that JSON would drop or change, such as a function, NaN or a
 * Map. Properties that are undefined are allowed, although JSON drops them, and so is −0, which JSON changes to 0.
 *
 * @example
 * ```ts
 * import { checkJsonValue } from "@mosaic/core";
 * checkJsonValue("report", { loss: [1.5, NaN] }); // throws report.loss[1]: expected a JSON value
 * ```
 */
export function checkJsonValue(where: string, value: unknown): void {
  expectValue("checkJsonValue: where", typeof where === "string", "a text that names the value", where);
  checkNestedValue(where, value, []);
}

function isJsonPrimitive(value: unknown): value is null | boolean | string | number {
  return value === null || typeof value === "boolean" || typeof value === "string" || Number.isFinite(value);
}

function checkNestedValue(where: string, value: unknown, ancestors: readonly unknown[]): void {
  const fail = (received: string): never => {
    throw new OptionError({
      where,
      expected: "a JSON value: null, a boolean, a finite number, a string, an array or a plain object",
      received,
      remedy: "convert or remove the value",
    });
  };
  if (isJsonPrimitive(value)) return;
  if (typeof value !== "object") return fail(formatValue(value));
  if (ancestors.includes(value)) return fail("a circular reference");
  const nestedAncestors = [...ancestors, value];
  const [symbolKey] = Object.getOwnPropertySymbols(value);
  if (symbolKey !== undefined) return fail(`an object with the key ${String(symbolKey)}`);
  if (Array.isArray(value)) {
    const keys = Object.keys(value);
    // With as many keys as elements, a key of another name implies a hole, which is rejected below.
    const extraKey = keys.length === value.length ? undefined : keys.find((name) => !/^\d+$/.test(name));
    if (extraKey !== undefined) return fail(`an array with the key "${extraKey}"`);
    for (let i = 0; i < value.length; i++) {
      // The path of an element is formatted only if necessary, because arrays may be long.
      if (!isJsonPrimitive(value[i])) checkNestedValue(`${where}[${i}]`, value[i], nestedAncestors);
    }
    return;
  }
  const prototype: unknown = Object.getPrototypeOf(value);
  const isPlainObject = prototype === null || Object.getPrototypeOf(prototype) === null;
  if (!isPlainObject) return fail(formatValue(value));
  for (const [name, nestedValue] of Object.entries(value)) {
    if (nestedValue !== undefined) checkNestedValue(`${where}.${name}`, nestedValue, nestedAncestors);
  }
}
