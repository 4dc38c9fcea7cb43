import type { AttentionBackend } from "./attention/backend.ts";
import { type DType, dtypeBytes } from "./storage.ts";
import { checkFunction, expectValue, formatValue } from "./errors.ts";
import type { Mask } from "./mask/slice.ts";
import type { Coordinate } from "./mesh.ts";
import type { Layout, Placement, PlacementName } from "./placement/placement.ts";
import { isTensor, type Tensor } from "./tensor.ts";

// The kinds of options, for example `option.integer({ min: 1 })`.

/**
 * Behavior of an option that is absent: it is an error ("required"), its value is undefined ("optional"), or it has a
 * default ("default").
 */
export type Presence = "required" | "optional" | "default";

/** An option: the values that it accepts, and its value if absent. */
export interface Option<Value, P extends Presence = Presence> {
  /** Description of the accepted values in messages and tables: "an integer ≥ 1". */
  readonly expected: string;
  readonly presence: P;
  readonly default: Value | undefined;
  readonly remedy: string | undefined;
  accepts(value: unknown): value is Value;
  /** The options of an option that is itself an options object. */
  readonly fields?: Fields | undefined;
}

/** Options by name, in the order in which messages list them. */
export type Fields = Readonly<Record<string, Option<unknown>>>;

/** Settings of every kind of option: a default or `optional`, and text for messages. */
export interface OptionSettings<Value> {
  readonly default?: Value;
  readonly optional?: true;
  readonly expected?: string;
  readonly remedy?: string;
}

/** The presence that follows from settings. */
export type PresenceOf<S> = S extends { readonly default: unknown }
  ? "default"
  : S extends { readonly optional: true }
    ? "optional"
    : "required";

type ValueOf<O> = O extends Option<infer Value> ? Value : never;
type NamesOf<F, P extends Presence> = { [Name in keyof F]: F[Name] extends Option<unknown, P> ? Name : never }[keyof F];

/**
 * Flattens an intersection to one object type. If all options are optional, TypeScript then rejects values that share
 * no property with it, such as a number.
 */
type FlattenedObject<T> = T extends infer Members ? { readonly [Name in keyof Members]: Members[Name] } : never;

/** The type of an options object as passed by callers. undefined is equivalent to absent. */
export type OptionsOf<D extends { readonly fields: Fields }> = FlattenedObject<RequiredOf<D> & OptionalOf<D>>;

type RequiredOf<D extends { readonly fields: Fields }> = {
  readonly [Name in keyof D["fields"] as Extract<Name, NamesOf<D["fields"], "required">>]: ValueOf<D["fields"][Name]>;
};
type OptionalOf<D extends { readonly fields: Fields }> = {
  readonly [Name in keyof D["fields"] as Exclude<Name, NamesOf<D["fields"], "required">>]?:
    | ValueOf<D["fields"][Name]>
    | undefined;
};

/** The result of `parse`: all options, with defaults. */
export type ResolvedOptionsOf<D extends { readonly fields: Fields }> = {
  readonly [Name in keyof D["fields"]]: D["fields"][Name] extends Option<infer Value, infer P>
    ? Value | (P extends "optional" ? undefined : never)
    : never;
};

export function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Throws an OptionError unless `option` is an option. */
export function checkOption(where: string, option: unknown): asserts option is Option<unknown> {
  const { accepts, expected } = (option ?? {}) as Partial<Option<unknown>>;
  const isOption = typeof accepts === "function" && typeof expected === "string";
  if (!isOption) expectValue(where, false, "an option, such as option.integer()", option);
}

/** Returns whether an option accepts a value. undefined means that it is absent. */
export function acceptsValueOrAbsence(option: Option<unknown>, value: unknown): boolean {
  checkOption("acceptsValueOrAbsence", option);
  return value === undefined && option.presence !== "required" ? true : option.accepts(value);
}

/**
 * Creates an option of any type from a description of the accepted values and a predicate.
 *
 * @example
 * ```ts
 * import { defineOptions, option } from "@mosaic/core";
 * const isEven = (value: unknown): value is number => typeof value === "number" && value % 2 === 0;
 * const options = defineOptions("rotary", { headDim: option.custom("an even number", isEven) });
 * options.parse({ headDim: 3 }); // throws rotary: headDim: expected an even number, received 3
 * ```
 */
export function custom<Value, const S extends OptionSettings<NoInfer<Value>>>(
  expected: string,
  accepts: (value: unknown) => value is Value,
  settings?: S,
): Option<Value, PresenceOf<S>> {
  expectValue("option: expected", typeof expected === "string", "a text", expected);
  checkFunction("option: accepts", accepts);
  const isValidSettings = settings === undefined || isObject(settings);
  expectValue("option: settings", isValidSettings, "settings { default, optional, expected, remedy }", settings);
  const presence = settings?.default !== undefined ? "default" : settings?.optional ? "optional" : "required";
  return {
    expected: settings?.expected ?? expected,
    presence: presence as PresenceOf<S>,
    default: settings?.default,
    remedy: settings?.remedy,
    accepts,
  };
}

/** Bounds of numbers. `min` and `max` are inclusive, `above` and `below` exclusive. */
export interface NumberRange {
  readonly min?: number;
  readonly max?: number;
  readonly above?: number;
  readonly below?: number;
}

function describeRange(range: NumberRange): { readonly text: string; readonly contains: (value: number) => boolean } {
  for (const name of ["min", "max", "above", "below"] as const) {
    const bound = (range as NumberRange | null)?.[name];
    expectValue(`option: ${name}`, bound === undefined || typeof bound === "number", "a number", bound);
  }
  const { min = -Infinity, max = Infinity, above = -Infinity, below = Infinity } = range;
  const contains = (value: number): boolean => {
    return (
      value >= min && value <= max && (above === -Infinity || value > above) && (below === Infinity || value < below)
    );
  };
  return { text: formatRange(range), contains };
}

function formatRange({ min, max, above, below }: NumberRange): string {
  const [lower, upper] = [min ?? above, max ?? below];
  if (lower === undefined && upper === undefined) return "";
  if (upper === undefined) return min === undefined ? ` > ${lower}` : ` ≥ ${lower}`;
  if (lower === undefined) return max === undefined ? ` < ${upper}` : ` ≤ ${upper}`;
  if (min === undefined) return ` above ${lower} and ${max === undefined ? "below" : "at most"} ${upper}`;
  return max === undefined ? ` ≥ ${lower} and < ${upper}` : ` from ${lower} to ${upper}`;
}

/** Creates an option for a finite number within a range. */
export function number<const S extends NumberRange & OptionSettings<number>>(
  settings?: S,
): Option<number, PresenceOf<S>> {
  const { text, contains } = describeRange(settings ?? {});
  const accepts = (value: unknown): value is number => Number.isFinite(value) && contains(value as number);
  return custom(text === "" ? "a finite number" : `a number${text}`, accepts, settings);
}

/** Creates an option for a safe integer within a range. */
export function integer<const S extends NumberRange & OptionSettings<number>>(
  settings?: S,
): Option<number, PresenceOf<S>> {
  const { text, contains } = describeRange(settings ?? {});
  const accepts = (value: unknown): value is number => Number.isSafeInteger(value) && contains(value as number);
  return custom(`an integer${text}`, accepts, settings);
}

/** Creates an option for a boolean. Truthy and falsy values of other types are rejected. */
export function boolean<const S extends OptionSettings<boolean>>(settings?: S): Option<boolean, PresenceOf<S>> {
  return custom("a boolean", (value): value is boolean => typeof value === "boolean", settings);
}

/** Creates an option for a non-empty string. */
export function string<const S extends OptionSettings<string>>(settings?: S): Option<string, PresenceOf<S>> {
  return custom("a string", (value): value is string => typeof value === "string" && value !== "", settings);
}

/** Creates an option for one of several strings or numbers. */
export function oneOf<const V extends string | number, const S extends OptionSettings<NoInfer<V>>>(
  values: readonly V[],
  settings?: S,
): Option<V, PresenceOf<S>> {
  expectValue("option.oneOf", Array.isArray(values), "an array of values", values);
  const formattedValues = values.map((each) => formatValue(each));
  const expected =
    formattedValues.length < 2
      ? formattedValues.join("")
      : `${formattedValues.slice(0, -1).join(", ")} or ${formattedValues.at(-1)}`;
  return custom(expected, (value): value is V => (values as readonly unknown[]).includes(value), settings);
}

/** Creates an option for an instance of a class. */
export function instance<Value, const S extends OptionSettings<NoInfer<Value>>>(
  constructorType: abstract new (...args: never[]) => Value,
  settings?: S,
): Option<Value, PresenceOf<S>> {
  checkFunction("option.instance: a class", constructorType);
  return custom(`a ${constructorType.name}`, (value): value is Value => value instanceof constructorType, settings);
}

/** Returns whether a value is a function, for `custom`. The type argument is the type of the function. */
export function isFunction<F>(value: unknown): value is F {
  return typeof value === "function";
}

/** Returns a predicate for values with these methods, for `custom`. */
export function hasMethods<Value>(...names: readonly (keyof Value & string)[]): (value: unknown) => value is Value {
  for (const name of names) expectValue("option.hasMethods", typeof name === "string", "names of methods", name);
  return (value): value is Value => {
    if (typeof value !== "object" || value === null) return false;
    return names.every((name) => typeof (value as Readonly<Record<string, unknown>>)[name] === "function");
  };
}

/** Creates an option for an array whose elements are accepted by another option. */
export function array<Value, const S extends OptionSettings<readonly NoInfer<Value>[]>>(
  elementOption: Option<Value>,
  settings?: S,
): Option<readonly Value[], PresenceOf<S>> {
  checkOption("option.array", elementOption);
  const accepts = (value: unknown): value is readonly Value[] =>
    Array.isArray(value) && acceptsAllElements(value, elementOption);
  return custom(`an array, each element ${elementOption.expected}`, accepts, settings);
}

/** Creates an option for an array of two elements that are accepted by another option. */
export function pair<Value, const S extends OptionSettings<readonly [NoInfer<Value>, NoInfer<Value>]>>(
  elementOption: Option<Value>,
  settings?: S,
): Option<readonly [Value, Value], PresenceOf<S>> {
  checkOption("option.pair", elementOption);
  const accepts = (value: unknown): value is readonly [Value, Value] =>
    Array.isArray(value) && value.length === 2 && acceptsAllElements(value, elementOption);
  return custom(`an array of length 2, each element ${elementOption.expected}`, accepts, settings);
}

/** Returns whether all elements are accepted. Does not use `every`, which skips holes. */
function acceptsAllElements(values: readonly unknown[], elementOption: Option<unknown>): boolean {
  for (let i = 0; i < values.length; i++) if (!elementOption.accepts(values[i])) return false;
  return true;
}

/** Creates an option that accepts what either of two options accepts. */
export function either<A, B, const S extends OptionSettings<NoInfer<A | B>>>(
  a: Option<A>,
  b: Option<B>,
  settings?: S,
): Option<A | B, PresenceOf<S>> {
  checkOption("option.either", a);
  checkOption("option.either", b);
  const accepts = (value: unknown): value is A | B => a.accepts(value) || b.accepts(value);
  return custom(`${a.expected}, or ${b.expected}`, accepts, settings);
}

/** Creates an option that accepts null or what another option accepts. */
export function nullable<Value, const S extends OptionSettings<NoInfer<Value> | null>>(
  elementOption: Option<Value>,
  settings?: S,
): Option<Value | null, PresenceOf<S>> {
  checkOption("option.nullable", elementOption);
  return custom(
    `${elementOption.expected}, or null`,
    (value): value is Value | null => value === null || elementOption.accepts(value),
    settings,
  );
}

/** Throws an OptionError unless `fields` is an object of options. */
export function checkFields(where: string, fields: unknown): asserts fields is Fields {
  if (!isObject(fields)) expectValue(where, false, "an options object", fields);
  for (const fieldOption of Object.values(fields as object)) checkOption(where, fieldOption);
}

/** Creates an option for a nested options object. Its own defaults are not filled in; its reader must call `parse`. */
export function nested<F extends Fields, const S extends OptionSettings<OptionsOf<{ fields: F }>>>(
  declaration: { readonly fields: F },
  settings?: S,
): Option<OptionsOf<{ fields: F }>, PresenceOf<S>> {
  const { fields } = declaration ?? {};
  checkFields("option.nested", fields);
  const accepts = (value: unknown): value is OptionsOf<{ fields: F }> =>
    isObject(value) &&
    Object.keys(value).every((name) => Object.hasOwn(fields, name)) &&
    Object.entries<Option<unknown>>(fields).every(([name, option]) => acceptsValueOrAbsence(option, value[name]));
  return { ...custom(`{ ${Object.keys(fields).join(", ")} }`, accepts, settings), fields };
}

/** Creates an option for the name of a dtype. */
export function dtype<const S extends OptionSettings<DType>>(settings?: S): Option<DType, PresenceOf<S>> {
  return oneOf(Object.keys(dtypeBytes) as DType[], settings);
}

/** Creates an option for a tensor. Does not check whether it is disposed. */
export function tensor<const S extends OptionSettings<Tensor>>(settings?: S): Option<Tensor, PresenceOf<S>> {
  return custom("a Tensor", isTensor, settings);
}

/** Creates an option for a mask. Names of masks are not accepted. */
export function mask<const S extends OptionSettings<Mask>>(settings?: S): Option<Mask, PresenceOf<S>> {
  return custom("a Mask, such as masks.causal() or masks.documents([3, 5])", hasMethods<Mask>("slices"), settings);
}

/** Creates an option for a placement or the name of one. */
export function placement<const S extends OptionSettings<PlacementName | Placement>>(
  settings?: S,
): Option<PlacementName | Placement, PresenceOf<S>> {
  const placementNameOption = oneOf(["contiguous", "zigzag", "striped"]);
  const hasSpans = hasMethods<Placement>("spans");
  const expected = "contiguous, zigzag, striped or a Placement";
  const isPlacementOrName = (value: unknown): value is PlacementName | Placement =>
    placementNameOption.accepts(value) || hasSpans(value);
  return custom(expected, isPlacementOrName, settings);
}

/** Creates an option for a layout. */
export function layout<const S extends OptionSettings<Layout>>(settings?: S): Option<Layout, PresenceOf<S>> {
  const hasSpans = hasMethods<Layout>("spans");
  const isLayout = (value: unknown): value is Layout => hasSpans(value) && Array.isArray(value.axes);
  return custom("a Layout from layoutOf()", isLayout, settings);
}

/** Creates an option for the lengths of mesh axes, by name. */
export function meshShape<const S extends OptionSettings<Coordinate>>(settings?: S): Option<Coordinate, PresenceOf<S>> {
  const isCoordinate = (value: unknown): value is Coordinate =>
    isObject(value) && Object.values(value).every((length) => typeof length === "number");
  return custom("axis lengths by name, such as { dp: 2, sp: 4 }", isCoordinate, settings);
}

/** Creates an option for a backend. Names are not accepted. */
export function backend<const S extends OptionSettings<AttentionBackend>>(
  settings?: S,
): Option<AttentionBackend, PresenceOf<S>> {
  const hasAttendMethods = hasMethods<AttentionBackend>("attend", "attendBackward");
  const isBackend = (value: unknown): value is AttentionBackend =>
    hasAttendMethods(value) &&
    [value.check, value.blockwise, value.withShape].every((each) => each === undefined || typeof each === "function") &&
    typeof value.name === "string" &&
    Array.isArray(value.axes);
  return custom("an AttentionBackend, such as ring()", isBackend, settings);
}
