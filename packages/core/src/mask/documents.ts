import { expectValue, formatValue, OptionError, ShapeError } from "../errors.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf } from "../options.ts";
import {
  checkCount,
  checkLengths,
  defineMask,
  formatCall,
  formatList,
  formatMask,
  formatObject,
  isMask,
} from "./define.ts";
import { createBand } from "./region.ts";
import type { Mask, Slice } from "./slice.ts";
import { resolveSlices } from "./verify.ts";

// Masks of packed sequences.

/** The mask within a document. */
export type DocumentMask = "causal" | "full" | Mask;

/**
 * Returns the mask of packed documents, each of which attends only to itself: fully, causally, or with any mask, which
 * is applied to each document as a sequence of its length. For self-attention. If queries and keys have different
 * lengths, use `fromCuSeqlens`.
 *
 * @param lengths Length of each document, in order. The sum must be the length of the sequence.
 * @param inner The mask of all documents, or an array with one mask per document.
 * @throws OptionError for lengths that are not integers ≥ 0 and for an invalid mask. When applied, ShapeError if the
 *   sum of the lengths does not match, and what the inner mask throws.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * masks.documents([2, 3], "causal").slices(5, 5).length; // => 2
 * masks.documents([600, 400], masks.slidingWindow(256)).slices(1000, 1000).length; // => 4
 * ```
 */
export function documents(lengths: readonly number[], inner: DocumentMask | readonly DocumentMask[] = "full"): Mask {
  const documentLengths = checkLengths("documents", lengths);
  const masks = Array.isArray(inner) ? [...(inner as readonly DocumentMask[])] : undefined;
  if (masks && masks.length !== documentLengths.length) {
    throw new OptionError({
      where: "documents",
      expected: `${documentLengths.length} masks, one for each document`,
      received: String(masks.length),
    });
  }
  for (const documentMask of masks ?? [inner as DocumentMask]) checkDocumentMask(documentMask);
  const maskText = masks ? `${masks.length} masks` : formatDocumentMask(inner as DocumentMask);
  const name = `documents(${documentLengths.length}, ${maskText})`;
  const total = documentLengths.reduce((sum, length) => sum + length, 0);
  const slicesOf = (queries: number, keys: number): readonly Slice[] => {
    checkTotal(name, { total, description: "the documents' lengths" }, [queries, keys]);
    const slices: Slice[] = [];
    let start = 0;
    for (const [i, length] of documentLengths.entries()) {
      appendShifted(slices, documentSlices(masks?.[i] ?? (inner as DocumentMask), length), [start, start]);
      start += length;
    }
    return slices;
  };
  return defineMask(name, slicesOf, (namespace) => {
    const lengthList = formatList(documentLengths);
    if (!masks)
      return formatCall(`${namespace}documents`, [
        lengthList,
        formatDocumentExpression(inner as DocumentMask, namespace),
      ]);
    if (lengthList === undefined || masks.length > MAX_WRITTEN_MASKS) return undefined;
    const expressions = masks.map((each) => formatDocumentExpression(each, namespace));
    return expressions.includes(undefined)
      ? undefined
      : `${namespace}documents(${lengthList}, [${expressions.join(", ")}])`;
  });
}

/** Maximum number of separate masks of documents in an expression. Longer expressions are not readable. */
const MAX_WRITTEN_MASKS = 4096;

function formatDocumentExpression(inner: DocumentMask, namespace: string): string | undefined {
  return typeof inner === "string" ? `"${inner}"` : formatMask(inner, namespace);
}

function checkDocumentMask(inner: unknown): asserts inner is DocumentMask {
  if (inner === "causal" || inner === "full" || isMask(inner)) return;
  throw new OptionError({ where: "documents", expected: 'a Mask, "causal" or "full"', received: formatValue(inner) });
}

function formatDocumentMask(inner: DocumentMask): string {
  return typeof inner === "string" ? inner : inner.name;
}

/** Returns the slices of one document, verified because a slice beyond its end would be in another document. */
function documentSlices(inner: DocumentMask, length: number): readonly Slice[] {
  if (typeof inner !== "string") return resolveSlices(inner, length, length);
  return [{ q0: 0, q1: length, k0: 0, k1: length, type: inner }];
}

function appendShifted(slices: Slice[], addedSlices: readonly Slice[], [q, k]: readonly [q: number, k: number]): void {
  for (const { q0, q1, k0, k1, type } of addedSlices)
    slices.push({ q0: q0 + q, q1: q1 + q, k0: k0 + k, k1: k1 + k, type });
}

// oxlint-disable-next-line max-params -- the parts of a message
function checkTotal(
  where: string,
  { total, description }: { total: number; description: string },
  lengths: readonly number[],
): void {
  if (lengths.every((length) => length === total)) return;
  throw new ShapeError({
    where,
    expected: `a sequence of length ${total}, the sum of ${description}`,
    received: `${lengths[0]} queries and ${lengths[1]} keys`,
  });
}

/**
 * Returns the mask of a question followed by several answers. The question is causal. Each answer attends to the
 * question and, causally, to itself, but not to the other answers, so that the scores equal those of separate sequences
 * with a shared prefix. For self-attention. Use `documents` to pack several of them.
 *
 * @param questionLength Length of the question.
 * @param answers Length of each answer, in order.
 * @throws OptionError for lengths that are not integers ≥ 0. ShapeError, when applied, if the sum of the lengths is not
 * the length of the sequence.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * const group = masks.shareQuestion(100, [20, 30]);
 * masks.maskArea(group, 150, 150); // => 10725
 * masks.documents([150, 150], group).slices(300, 300).length; // => 6
 * ```
 */
export function shareQuestion(questionLength: number, answers: readonly number[]): Mask {
  const where = "shareQuestion";
  checkCount(`${where}: question`, questionLength, 0);
  const answerLengths = checkLengths(`${where}: answers`, answers);
  const name = `shareQuestion(${questionLength}, ${answerLengths.length} answers)`;
  const total = answerLengths.reduce((sum, length) => sum + length, questionLength);
  const slicesOf = (queries: number, keys: number): readonly Slice[] => {
    checkTotal(name, { total, description: "the question and answer lengths" }, [queries, keys]);
    // The question and the first answer form one causal sequence.
    const firstAnswerEnd = questionLength + (answerLengths[0] ?? 0);
    const slices: Slice[] = [
      { q0: 0, q1: firstAnswerEnd, k0: 0, k1: firstAnswerEnd, type: "causal" },
      { q0: firstAnswerEnd, q1: total, k0: 0, k1: questionLength, type: "full" },
    ];
    let start = firstAnswerEnd;
    for (const length of answerLengths.slice(1)) {
      slices.push({ q0: start, q1: start + length, k0: start, k1: start + length, type: "causal" });
      start += length;
    }
    return slices;
  };
  return defineMask(name, slicesOf, (namespace) =>
    formatCall(`${namespace}${where}`, [String(questionLength), formatList(answerLengths)]),
  );
}

export const fromCuSeqlensOptions = defineOptions("fromCuSeqlens", {
  /** Whether keys after a query's own position are masked out. Default false. */
  causal: option.boolean({ default: false }),
  /** Number of keys before its own position to which each query attends. Default: all of its sequence. */
  left: option.integer({ min: 0, optional: true }),
  /**
   * Number of keys after its own position to which each query attends; none if causal. Default: all of its sequence.
   */
  right: option.integer({ min: 0, optional: true }),
});
/** Options of `fromCuSeqlens`: the mask within each packed sequence. */
export type CuSeqlensOptions = OptionsOf<typeof fromCuSeqlensOptions>;

/**
 * Returns the mask of packed sequences given by cumulative lengths, the `cu_seqlens` of FlashAttention's varlen
 * functions: [0, end of the first, end of the second, …]. Queries of sequence i attend to keys of sequence i,
 * bottom-right aligned.
 *
 * @param cuSeqlensQ Cumulative lengths of the queries.
 * @param cuSeqlensK Cumulative lengths of the keys, for the same number of sequences; null if equal to those of the
 * queries.
 * @throws OptionError if cumulative lengths do not ascend from 0, and for different numbers of sequences. ShapeError,
 *   when applied, if the last cumulative lengths are not the numbers of queries and keys.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * const mask = masks.fromCuSeqlens(new Int32Array([0, 2, 5]), null, { causal: true });
 * masks.maskArea(mask, 5, 5); // => 9
 * const cross = masks.fromCuSeqlens([0, 2, 5], [0, 4, 4], { causal: true, left: 1 });
 * cross.slices(5, 4); // => [{ q0: 0, q1: 2, k0: 1, k1: 4, type: "bidirectionalCausal" }]
 * ```
 */
export function fromCuSeqlens(
  cuSeqlensQ: ArrayLike<number>,
  cuSeqlensK?: ArrayLike<number> | null,
  options?: CuSeqlensOptions,
): Mask {
  const { causal, left, right } = fromCuSeqlensOptions.parse(options);
  const queryEnds = checkCuSeqlens("fromCuSeqlens: cuSeqlensQ", cuSeqlensQ);
  const keyEnds = cuSeqlensK == null ? queryEnds : checkCuSeqlens("fromCuSeqlens: cuSeqlensK", cuSeqlensK);
  if (keyEnds.length !== queryEnds.length) {
    throw new OptionError({
      where: "fromCuSeqlens: cuSeqlensK",
      expected: `${queryEnds.length} cumulative lengths, the same number as in cuSeqlensQ`,
      received: String(keyEnds.length),
    });
  }
  const name = `fromCuSeqlens(${queryEnds.length - 1}${causal ? ", causal" : ""})`;
  const bounds = { left: left ?? Number.POSITIVE_INFINITY, right: causal ? 0 : (right ?? Number.POSITIVE_INFINITY) };
  const slicesOf = (queries: number, keys: number): readonly Slice[] => {
    checkEnds(name, [queryEnds.at(-1)!, keyEnds.at(-1)!], [queries, keys]);
    const slices: Slice[] = [];
    for (let i = 1; i < queryEnds.length; i++) {
      const [q, k] = [queryEnds[i - 1]!, keyEnds[i - 1]!];
      appendShifted(slices, createBand(queryEnds[i]! - q, keyEnds[i]! - k, bounds), [q, k]);
    }
    return slices;
  };
  return defineMask(name, slicesOf, (namespace) =>
    formatCall(`${namespace}fromCuSeqlens`, [
      formatList(queryEnds),
      keyEnds === queryEnds ? "null" : formatList(keyEnds),
      formatObject({ causal: causal || undefined, left, right }),
    ]),
  );
}

function checkCuSeqlens(where: string, ends: unknown): readonly number[] {
  const isArrayLike = Array.isArray(ends) || (ArrayBuffer.isView(ends) && !(ends instanceof DataView));
  expectValue(where, isArrayLike, "an array of cumulative lengths", ends);
  const values = Array.from(ends as ArrayLike<unknown>);
  const isAscending = (end: unknown, i: number): boolean =>
    Number.isSafeInteger(end) && (i === 0 ? end === 0 : (end as number) >= (values[i - 1] as number));
  expectValue(where, values.length > 0 && values.every(isAscending), "ascending integers that start at 0", values);
  return values as number[];
}

function checkEnds(where: string, expected: readonly number[], lengths: readonly number[]): void {
  if (lengths.every((length, i) => length === expected[i])) return;
  throw new ShapeError({
    where,
    expected: `${expected[0]} queries and ${expected[1]} keys, the last cumulative lengths`,
    received: `${lengths[0]} queries and ${lengths[1]} keys`,
  });
}
