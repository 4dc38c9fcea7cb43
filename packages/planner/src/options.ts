import { checkOptionNames, OptionError } from "@mosaic/core";

// What callers without types pass is checked where it comes in, so that what they read is about their call.

/** Throws an OptionError unless a value is what was expected. */
// oxlint-disable-next-line max-params -- where, what is asked, and its words in an error
export function demand(where: string, fits: boolean, expected: string, received: unknown): void {
  if (!fits) throw new OptionError({ where, expected, received: textOf(received) });
}

/** Throws an OptionError unless options are an object with no fields but these. */
export function checkFields(where: string, options: unknown, legal: readonly string[]): asserts options is object {
  demand(where, typeof options === "object" && options !== null && !Array.isArray(options), "options", options);
  checkOptionNames(where, options as object, legal);
}

/** Throws an OptionError unless a value is a whole number of a range, which is from 1 on if none is given. */
// oxlint-disable-next-line max-params -- where, which, its value and its range
export function checkCount(
  where: string,
  name: string,
  value: unknown,
  { least = 1, most = Number.MAX_SAFE_INTEGER }: { readonly least?: number; readonly most?: number } = {},
): void {
  const fits = Number.isSafeInteger(value) && (value as number) >= least && (value as number) <= most;
  const range = most === Number.MAX_SAFE_INTEGER ? `≥ ${least}` : `from ${least} to ${most}`;
  demand(where, fits, `${name} a whole number ${range}`, value);
}

/** Throws an OptionError unless a value is what `record` or `recordClasses` returned. */
export function checkRecord(where: string, record: unknown): void {
  const { ranks, options, classes } = (record ?? {}) as Readonly<Record<string, unknown>>;
  const fits = Array.isArray(ranks) && typeof options === "object" && typeof classes === "object";
  demand(where, fits && options !== null && classes !== null, "a record, as record() returns", record);
}

/** Throws an OptionError unless a value is a timeline, as far as its ranks and pieces go. */
export function checkTimeline(where: string, timeline: unknown): void {
  const { seconds, ranks } = (timeline ?? {}) as Readonly<Record<string, unknown>>;
  const isRank = (rank: unknown): boolean => Array.isArray((rank as { pieces?: unknown } | null)?.pieces);
  const fits = typeof seconds === "number" && Array.isArray(ranks) && ranks.every(isRank);
  demand(where, fits, "a timeline { seconds, ranks }", timeline);
}

/** A value as messages name it. */
function textOf(value: unknown): string {
  if (typeof value === "string") return JSON.stringify(value);
  if (Array.isArray(value)) return "a list";
  if (typeof value === "object" && value !== null) return "an object";
  return String(value);
}
