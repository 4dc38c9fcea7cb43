import { expectValue, formatValue, OptionError } from "./errors.ts";
import {
  acceptsValueOrAbsence,
  checkFields,
  checkOption,
  type Fields,
  isObject,
  type Option,
  type ResolvedOptionsOf,
} from "./option.ts";

export type { OptionsOf, ResolvedOptionsOf } from "./option.ts";

// An options object is declared once. The declaration defines its type, names, defaults and checks, and, with the
// comment above each name, its table in the README of the package (scripts/options-tables.mjs).

/** Declaration of an options object, created by `defineOptions`. */
export interface OptionsDeclaration<F extends Fields> {
  readonly name: string;
  readonly fields: F;
  /**
   * Returns all options with defaults. Messages begin with `where`, by default the name of the declaration.
   *
   * @throws OptionError if `options` is not an object, for unknown names, and for values that an option does not
   * accept.
   */
  parse(options: unknown, where?: string): ResolvedOptionsOf<{ readonly fields: F }>;
}

/**
 * Declares an options object. The comment above each name documents the option.
 *
 * @example
 * ```ts
 * import { defineOptions, option, type OptionsOf } from "@mosaic/core";
 * const dropOptions = defineOptions("drop", {
 *   // Of an element to become 0.
 *   probability: option.number({ min: 0, below: 1 }),
 *   inPlace: option.boolean({ default: false }),
 * });
 * type DropOptions = OptionsOf<typeof dropOptions>; // { readonly probability: number; readonly inPlace?: boolean }
 * const options: DropOptions = { probability: 0.5 };
 * dropOptions.parse(options); // => { probability: 0.5, inPlace: false }
 * dropOptions.parse({ probability: 1 }); // throws drop: probability: expected a number ≥ 0 and < 1, received 1
 * dropOptions.parse({ probability: 0, inplace: true }); // throws expected options among probability, inPlace
 * ```
 */
export function defineOptions<const F extends Fields>(name: string, fields: F): OptionsDeclaration<F> {
  expectValue("defineOptions: name", typeof name === "string", "a name", name);
  checkFields(`defineOptions: ${name}`, fields);
  let compiledFields: CompiledFields | undefined;
  // Operations parse their options at every call, so this avoids spreads, closures and entry pairs.
  const parse = (userOptions: unknown, where: string = name): Readonly<Record<string, unknown>> => {
    const { names, options, defaults } = (compiledFields ??= compileFields(fields));
    // Calls without options are frequent. They all return the same object.
    if (userOptions === undefined && defaults !== undefined) return defaults;
    if (!isObject(userOptions)) throw missingOptionsError(where, fields, userOptions);
    for (const optionName of Object.keys(userOptions))
      if (!names.includes(optionName)) throw unknownOptionError(where, fields, userOptions);
    const parsedOptions: Record<string, unknown> = {};
    for (let i = 0; i < names.length; i++) {
      const fieldName = names[i]!;
      const option = options[i]!;
      const value = userOptions[fieldName];
      if (value === undefined && option.presence !== "required") parsedOptions[fieldName] = option.default;
      else if (option.accepts(value)) parsedOptions[fieldName] = value;
      else throw createInvalidValueError(`${formatLocation(where)}: ${fieldName}`, option, value);
    }
    return parsedOptions;
  };
  return { name, fields, parse: parse as OptionsDeclaration<F>["parse"] };
}

/**
 * The form of a declaration that `parse` uses. It is created at the first call, because a program imports many
 * declarations and uses few.
 */
interface CompiledFields {
  readonly names: readonly string[];
  readonly options: readonly Option<unknown>[];
  /** Undefined if an option is required. */
  readonly defaults: Readonly<Record<string, unknown>> | undefined;
}

function compileFields(fields: Fields): CompiledFields {
  const names = Object.keys(fields);
  const options = Object.values<Option<unknown>>(fields);
  const hasRequiredOption = options.some(({ presence }) => presence === "required");
  const defaults = Object.fromEntries(names.map((name, i) => [name, options[i]!.default]));
  return { names, options, defaults: hasRequiredOption ? undefined : Object.freeze(defaults) };
}

/**
 * Checks an argument outside of an options object. `where` is its name in errors.
 *
 * @example
 * ```ts
 * import { checkArgument, option } from "@mosaic/core";
 * checkArgument("myOp: count", 0, option.integer({ min: 1 })); // throws expected an integer ≥ 1, received 0
 * ```
 * @throws OptionError unless an option of this kind accepts the value.
 */
export function checkArgument<Value>(where: string, value: unknown, kind: Option<Value>): asserts value is Value {
  checkOption("checkArgument", kind);
  if (!kind.accepts(value)) throw createInvalidValueError(where, kind, value);
}

function missingOptionsError(where: string, fields: Fields, received: unknown): OptionError {
  const requiredNames = Object.keys(fields).filter((name) => fields[name]!.presence === "required");
  const expected = `an options object${requiredNames.length > 0 ? ` with ${requiredNames.join(", ")}` : ""}`;
  return new OptionError({ where, expected, received: formatValue(received) });
}

function unknownOptionError(where: string, knownFields: Fields, options: object): OptionError {
  const unknownNames = Object.keys(options).filter((name) => !Object.hasOwn(knownFields, name));
  const quotedNames = unknownNames.map((name) => `"${name}"`).join(", ");
  return new OptionError({
    where,
    expected: `options among ${Object.keys(knownFields).join(", ")}`,
    // Fields alone would not identify a tensor or a module that was passed in place of options.
    received: (isPlainObject(options) ? "" : `${formatValue(options)} with `) + quotedNames,
  });
}

function isPlainObject(value: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}

/** Formats the beginning of messages. A caller without types may pass any value. */
function formatLocation(where: unknown): string {
  return typeof where === "string" ? where : formatValue(where);
}

/** Creates the error for an invalid value. For nested objects, reports the location of the invalid field. */
function createInvalidValueError(
  where: string,
  { expected, remedy, fields }: Option<unknown>,
  value: unknown,
): OptionError {
  if (fields && isObject(value)) {
    if (Object.keys(value).some((name) => !Object.hasOwn(fields, name)))
      return unknownOptionError(where, fields, value);
    const invalidField = Object.entries(fields).find(([name, each]) => !acceptsValueOrAbsence(each, value[name]));
    if (invalidField)
      return createInvalidValueError(
        `${formatLocation(where)}: ${invalidField[0]}`,
        invalidField[1],
        value[invalidField[0]],
      );
  }
  return new OptionError({ where, expected, received: formatValue(value), ...(remedy !== undefined && { remedy }) });
}
