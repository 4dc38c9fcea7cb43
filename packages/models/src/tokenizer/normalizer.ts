import { isJsonObject, type Json } from "../config/fields.ts";

// Normalizers of a tokenizer.json that @huggingface/tokenizers applies differently from Python's tokenizers, as
// equivalent ones that it applies equally.

/**
 * JavaScript's toLowerCase converts a sigma at the end of a word to its final form. Python's tokenizers convert each
 * character on its own.
 */
const LOWERCASE_SIGMA: Json = { type: "Replace", pattern: { String: "Σ" }, content: "σ" };

/** Returns a normalizer that @huggingface/tokenizers applies as Python's tokenizers apply the given one. */
export function toEquivalentNormalizer(normalizer: unknown): unknown {
  if (!isJsonObject(normalizer)) return normalizer;
  const { type, normalizers } = normalizer;
  switch (type) {
    case "Sequence":
      return Array.isArray(normalizers)
        ? { ...normalizer, normalizers: normalizers.map(toEquivalentNormalizer) }
        : normalizer;
    case "Lowercase":
      return { type: "Sequence", normalizers: [LOWERCASE_SIGMA, normalizer] };
    case "BertNormalizer":
      return normalizer.lowercase === true
        ? { type: "Sequence", normalizers: [LOWERCASE_SIGMA, normalizer] }
        : normalizer;
    case "Strip":
      return strip(normalizer);
    default:
      return normalizer;
  }
}

/** Returns a Strip of the characters that are whitespace in Unicode. JavaScript's trim differs in U+0085 and U+FEFF. */
function strip({ strip_left: isLeft, strip_right: isRight }: Json): Json {
  const patterns = [
    ...(isLeft === true ? ["\\A\\p{White_Space}+"] : []),
    ...(isRight === true ? ["(?<!\\p{White_Space})\\p{White_Space}+\\z"] : []),
  ];
  return {
    type: "Sequence",
    normalizers: patterns.map((pattern) => ({ type: "Replace", pattern: { Regex: pattern }, content: "" })),
  };
}
