import { expectValue } from "../errors.ts";
import { checkSlices, type Slice, sliceTypeCodes } from "../mask/slice.ts";
import { checkIntegerSpans, type Span } from "../placement/span.ts";

// Masks, shards and other lists as text for `recordCall`. Equal lists have equal text.

/**
 * Maximum number of slices, spans, shards or samples that are listed in full. A longer list is shown as its first items
 * and a hash of all.
 */
const MAX_LISTED_ITEMS = 4;

/**
 * Formats slices as `causal 0:512 × 0:512`, the query range before the key range, both as in Python. A long list is
 * shown as its first slices and a hash of all.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * import { formatSlices } from "@mosaic/core/context-parallel";
 * formatSlices(masks.causal().slices(512, 512)); // => "causal 0:512 × 0:512"
 * ```
 * @throws OptionError unless the values are slices.
 */
export function formatSlices(slices: readonly Slice[]): string {
  checkSlices("formatSlices", slices);
  if (slices.length === 0) return "empty";
  const listedSlicesText = slices
    .slice(0, MAX_LISTED_ITEMS)
    .map(({ q0, q1, k0, k1, type }) => `${type} ${q0}:${q1} × ${k0}:${k1}`)
    .join(" + ");
  if (slices.length <= MAX_LISTED_ITEMS) return listedSlicesText;
  const hash = new Hash();
  for (const { q0, q1, k0, k1, type } of slices) {
    for (const each of [q0, q1, k0, k1, sliceTypeCodes[type]]) hash.add(each);
  }
  return `${listedSlicesText} + … (${slices.length} slices, hash ${hash.hexDigest()})`;
}

/**
 * Formats sample masks as `causal 0:5 × 0:5 | causal 0:8 × 0:8`. A long list is shown as its first samples and a hash
 * of all.
 */
export function formatSampleMasks(sampleMasks: readonly (readonly Slice[])[]): string {
  const listedSamplesText = sampleMasks.slice(0, MAX_LISTED_ITEMS).map(formatSlices).join(" | ");
  if (sampleMasks.length <= MAX_LISTED_ITEMS) return listedSamplesText;
  const hash = new Hash();
  for (const slices of sampleMasks) {
    for (const { q0, q1, k0, k1, type } of slices) {
      for (const each of [q0, q1, k0, k1, sliceTypeCodes[type]]) hash.add(each);
    }
    hash.add(-1);
  }
  return `${listedSamplesText} | … (${sampleMasks.length} samples, hash ${hash.hexDigest()})`;
}

/**
 * Formats shards as `0:128 | 128:256`, with ranges as in Python. A long list is shown as its first shards and a hash of
 * all.
 *
 * @example
 * ```ts
 * import { resolveShards, striped } from "@mosaic/core";
 * import { formatShards } from "@mosaic/core/context-parallel";
 * formatShards(resolveShards(striped(), 2, 8)); // => "0:8:2 | 1:9:2"
 * ```
 * @throws OptionError unless the values are spans.
 */
export function formatShards(shards: readonly (readonly Span[])[]): string {
  expectValue("formatShards", Array.isArray(shards), "an array of spans for each shard", shards);
  const hash = new Hash();
  for (let i = 0; i < shards.length; i++) {
    checkIntegerSpans("formatShards", shards[i]);
    for (const { start, length, step } of shards[i]!) for (const each of [start, length, step]) hash.add(each);
    hash.add(-1);
  }
  const listedShards = shards.slice(0, MAX_LISTED_ITEMS).map(formatSpans);
  const isComplete = shards.length <= MAX_LISTED_ITEMS && listedShards.every((each) => !each.endsWith("…"));
  return isComplete
    ? listedShards.join(" | ")
    : `${listedShards.join(" | ")} | … (${shards.length} shards, hash ${hash.hexDigest()})`;
}

function formatSpans(spans: readonly Span[]): string {
  if (spans.length === 0) return "none";
  const listedSpansText = spans
    .slice(0, MAX_LISTED_ITEMS)
    .map(({ start, length, step }) => `${start}:${start + length * step}${step === 1 ? "" : `:${step}`}`)
    .join(",");
  return spans.length <= MAX_LISTED_ITEMS ? listedSpansText : `${listedSpansText},…`;
}

/**
 * Returns a 64-bit hash of integers as 16 hexadecimal digits. Equal sequences of integers have equal hashes.
 *
 * @example
 * ```ts
 * import { hashNumbers } from "@mosaic/core/context-parallel";
 * hashNumbers([1, 2, 3]) === hashNumbers([1, 3, 2]); // => false
 * ```
 * @throws OptionError unless the values are integers.
 */
export function hashNumbers(numbers: Iterable<number>): string {
  const isIterable = typeof (numbers as Partial<Iterable<number>> | null | undefined)?.[Symbol.iterator] === "function";
  expectValue("hashNumbers", isIterable && typeof numbers === "object", "an iterable of integers", numbers);
  const hash = new Hash();
  for (const each of numbers) {
    if (!Number.isSafeInteger(each)) expectValue("hashNumbers", false, "integers", each);
    hash.add(each);
  }
  return hash.hexDigest();
}

/** A 64-bit hash of integers: two 32-bit MurmurHash3 (Appleby) hashes with different seeds. */
class Hash {
  #low = 0x9747b28c | 0;
  #high = 0x3c6ef372;

  add(value: number): void {
    const lowWord = value | 0;
    const highWord = Math.floor(value / 2 ** 32) | 0;
    this.#low = murmurMix(murmurMix(this.#low, lowWord), highWord);
    this.#high = murmurMix(murmurMix(this.#high, lowWord), highWord);
  }

  hexDigest(): string {
    return [murmurFinalize(this.#high), murmurFinalize(this.#low)]
      .map((word) => word.toString(16).padStart(8, "0"))
      .join("");
  }
}

function murmurMix(hash: number, word: number): number {
  let k = Math.imul(word, 0xcc9e2d51);
  k = Math.imul((k << 15) | (k >>> 17), 0x1b873593);
  const mixedHash = hash ^ k;
  return (Math.imul((mixedHash << 13) | (mixedHash >>> 19), 5) + 0xe6546b64) | 0;
}

function murmurFinalize(hash: number): number {
  let h = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}
