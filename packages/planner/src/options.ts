// What groups of real devices refuse is refused here too: a record of it could be proved, and would run nowhere.
import { checkOptionNames, type Coordinate, option, OptionError, ShapeError } from "@mosaic/core";

/** A mesh of whole ranks, whose axes keep the order in which they are named. */
export function checkMesh(where: string, mesh: Coordinate): void {
  expectValue(
    `${where}: mesh`,
    option.meshShape().accepts(mesh),
    "axis lengths by name, such as { dp: 2, sp: 4 }",
    mesh,
  );
  const isLength = (length: number): boolean => Number.isSafeInteger(length) && length > 0;
  const fits = Object.entries(mesh).every(([axis, length]) => /^[A-Za-z_]/.test(axis) && isLength(length));
  if (fits) return;
  throw new OptionError({
    where,
    expected: "a mesh of axes whose names begin with a letter, each an integer of ranks ≥ 1",
    received: JSON.stringify(mesh),
  });
}

/** Tapes hold numbers of 32 bits. */
const maxCount = 2 ** 31 - 1;

/** Throws a ShapeError if a count is larger than a tape can hold. */
export function checkCounts(where: string, counts: readonly number[]): void {
  const max = counts.reduce((a, b) => Math.max(a, b), 0);
  if (max <= maxCount) return;
  throw new ShapeError({ where, expected: `shares of at most ${maxCount} elements`, received: String(max) });
}

// What callers without types pass is checked where it comes in, so that what they read is about their call.

/** Throws an OptionError unless a value is what was expected. */
// oxlint-disable-next-line max-params -- where, the condition, and its text in an error
export function expectValue(where: string, fits: boolean, expected: string, received: unknown): void {
  if (!fits) throw new OptionError({ where, expected, received: formatValue(received) });
}

/** Throws an OptionError unless options are an object with no fields but these. */
export function checkFields(where: string, options: unknown, allowed: readonly string[]): asserts options is object {
  expectValue(where, typeof options === "object" && options !== null && !Array.isArray(options), "options", options);
  checkOptionNames(where, options as object, allowed);
}

/** Throws an OptionError unless a value is an integer of a range, which is from 1 on if none is given. */
// oxlint-disable-next-line max-params -- where, which, its value and its range
export function checkCount(
  where: string,
  name: string,
  value: unknown,
  { min = 1, max = Number.MAX_SAFE_INTEGER }: { readonly min?: number; readonly max?: number } = {},
): void {
  const fits = Number.isSafeInteger(value) && (value as number) >= min && (value as number) <= max;
  const range = max === Number.MAX_SAFE_INTEGER ? `≥ ${min}` : `from ${min} to ${max}`;
  expectValue(where, fits, `${name} an integer ${range}`, value);
}

/** Throws an OptionError unless a value is what `record` or `recordClasses` returned. */
export function checkRecord(where: string, record: unknown): void {
  const { ranks, options, classes } = (record ?? {}) as Readonly<Record<string, unknown>>;
  const fits = Array.isArray(ranks) && typeof options === "object" && typeof classes === "object";
  expectValue(where, fits && options !== null && classes !== null, "a record, as record() returns", record);
}

/** Throws an OptionError unless a value is a timeline, as far as its ranks and pieces go. */
export function checkTimeline(where: string, timeline: unknown): void {
  const { seconds, ranks } = (timeline ?? {}) as Readonly<Record<string, unknown>>;
  const isRank = (rank: unknown): boolean => Array.isArray((rank as { pieces?: unknown } | null)?.pieces);
  const fits = typeof seconds === "number" && Array.isArray(ranks) && ranks.every(isRank);
  expectValue(where, fits, "a timeline { seconds, ranks }", timeline);
}

/** Throws an OptionError unless the texts of a picture are strings, and its ranks, if given, an array. */
export function checkPicture(
  where: string,
  { title, subtitle, ranks }: { readonly title: unknown; readonly subtitle: unknown; readonly ranks: unknown },
): void {
  for (const text of [title, subtitle]) expectValue(where, typeof text === "string", "strings", text);
  expectValue(`${where}: ranks`, ranks === undefined || Array.isArray(ranks), "an array of ranks", ranks);
}

/** A value as messages name it. */
function formatValue(value: unknown): string {
  if (typeof value === "string") return JSON.stringify(value);
  if (Array.isArray(value)) return "a list";
  if (typeof value === "object" && value !== null) return "an object";
  return String(value);
}
