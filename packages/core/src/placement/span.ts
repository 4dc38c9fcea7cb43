import { expectValue, ShapeError } from "../errors.ts";

/**
 * Global positions start, start + step, … (`length` of them), integers: start ≥ 0, length ≥ 0, step ≥ 1. A shard is an
 * ordered list of spans.
 */
export interface Span {
  readonly start: number;
  readonly length: number;
  readonly step: number;
}

/**
 * Throws an OptionError unless `spans` is an array of spans of integers, length ≥ 0, step ≥ 1. Called for every tile.
 */
export function checkIntegerSpans(where: string, spans: unknown): asserts spans is readonly Span[] {
  if (!Array.isArray(spans)) expectValue(where, false, "an array of spans { start, length, step }", spans);
  const spanList = spans as readonly unknown[];
  for (let i = 0; i < spanList.length; i++) checkIntegerSpan(where, spanList[i]);
}

/** As `checkIntegerSpans`, for one span. */
export function checkIntegerSpan(where: string, span: unknown): asserts span is Span {
  if (typeof span === "object" && span !== null) {
    const { start, length, step } = span as Span;
    const isInteger = Number.isSafeInteger(start) && Number.isSafeInteger(length) && Number.isSafeInteger(step);
    if (isInteger && length >= 0 && step >= 1) return;
  }
  expectValue(where, false, "a span { start, length, step } of integers, length ≥ 0, step ≥ 1", span);
}

/** Throws an OptionError unless `spans` is an array of spans. Does not check the values of their fields. */
function checkSpans(where: string, spans: unknown): asserts spans is readonly Span[] {
  expectValue(
    where,
    Array.isArray(spans) && [...spans].every(isSpan),
    "an array of spans { start, length, step }",
    spans,
  );
}

function isSpan(value: unknown): value is Span {
  const { start, length, step } = (value ?? {}) as Partial<Span>;
  return typeof start === "number" && typeof length === "number" && typeof step === "number";
}

/**
 * Returns the number of positions in a list of spans.
 *
 * @example
 * ```ts
 * import { spansLength } from "@mosaic/core";
 * spansLength([{ start: 0, length: 3, step: 1 }, { start: 8, length: 2, step: 1 }]); // => 5
 * ```
 * @throws OptionError unless `spans` is an array of spans.
 */
export function spansLength(spans: readonly Span[]): number {
  expectValue("spansLength", Array.isArray(spans), "an array of spans { start, length, step }", spans);
  let sum = 0;
  for (const span of spans) {
    const length: unknown = (span as Span | null | undefined)?.length;
    expectValue("spansLength", typeof length === "number", "spans { start, length, step }", span);
    sum += length as number;
  }
  return sum;
}

/**
 * Joins consecutive spans where possible, without changing the positions or their order, because kernels process one
 * span at a time.
 *
 * @example
 * ```ts
 * import { joinSpans } from "@mosaic/core";
 * const spans = [{ start: 0, length: 3, step: 1 }, { start: 3, length: 2, step: 1 }];
 * joinSpans(spans); // => [{ start: 0, length: 5, step: 1 }]
 * ```
 * @throws OptionError unless `spans` is an array of spans.
 */
export function joinSpans(spans: readonly Span[]): Span[] {
  checkSpans("joinSpans", spans);
  const result: Span[] = [];
  for (const span of spans) {
    if (span.length === 0) continue;
    const lastSpan = result.at(-1);
    if (lastSpan && lastSpan.step === span.step && lastSpan.start + lastSpan.length * lastSpan.step === span.start) {
      result[result.length - 1] = { ...lastSpan, length: lastSpan.length + span.length };
    } else result.push(span);
  }
  return result;
}

/** Returns the global positions of some rows of a shard. */
export function spansOfRowsUnchecked(
  spans: readonly Span[],
  ranges: readonly Pick<Span, "start" | "length">[],
): Span[] {
  const rowSpans: Span[] = [];
  for (const range of ranges) {
    let row = 0;
    for (const { start, length, step } of spans) {
      const firstRow = Math.max(0, range.start - row);
      const end = Math.min(length, range.start + range.length - row);
      if (firstRow < end) rowSpans.push({ start: start + firstRow * step, length: end - firstRow, step });
      row += length;
    }
  }
  return rowSpans;
}

const MAX_POSITION = 2 ** 31 - 1;

/**
 * Returns the positions in order, for example as position ids of a rotary embedding.
 *
 * @example
 * ```ts
 * import { positions } from "@mosaic/core";
 * Array.from(positions([{ start: 1, length: 3, step: 2 }])); // => [1, 3, 5]
 * ```
 * @throws ShapeError for more than 2²⁸ positions, and for positions outside 0 to 2³¹ − 1.
 */
export function positions(spans: readonly Span[]): Int32Array {
  const count = spansLength(spans);
  const isValidCount = Number.isSafeInteger(count) && count >= 0 && count <= 2 ** 28;
  if (!isValidCount || spans.some(({ length }) => !Number.isSafeInteger(length) || length < 0)) {
    const received = String(count);
    throw new ShapeError({ where: "positions", expected: "0 to 2**28 positions", received });
  }
  const result = new Int32Array(count);
  let row = 0;
  for (const { start, length, step } of spans) {
    const lastPosition = start + (length - 1) * step;
    if (length > 0 && (start < 0 || lastPosition > MAX_POSITION)) {
      throw new ShapeError({
        where: "positions",
        expected: `positions from 0 to ${MAX_POSITION}`,
        received: `${start} to ${lastPosition}`,
      });
    }
    for (let i = 0; i < length; i++) result[row++] = start + i * step;
  }
  return result;
}
