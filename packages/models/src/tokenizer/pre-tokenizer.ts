import { isJsonObject, type Json } from "../config/fields.ts";

// Pre-tokenizers of a tokenizer.json that @huggingface/tokenizers applies differently from Python's tokenizers, as
// equivalent ones of type "Split", of which it applies "Isolated", "Removed" and the matches of a regular expression.

/** A character of a word in Unicode. */
const WORD_CHARACTERS = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}";
const WORDS_PATTERN = `[${WORD_CHARACTERS}]+|[^${WORD_CHARACTERS}\\p{White_Space}]+`;
const PUNCTUATION_CHARACTERS = "\\p{P}\\u0021-\\u002F\\u003A-\\u0040\\u005B-\\u0060\\u007B-\\u007E";
const PUNCTUATION_PATTERN = `[${PUNCTUATION_CHARACTERS}]`;
const BERT_PATTERN = `[^${PUNCTUATION_CHARACTERS}\\p{White_Space}]+|${PUNCTUATION_PATTERN}`;

/** Returns a pre-tokenizer that @huggingface/tokenizers applies as Python's tokenizers apply the given one. */
export function toEquivalentPreTokenizer(preTokenizer: unknown): unknown {
  if (!isJsonObject(preTokenizer)) return preTokenizer;
  const { type, pretokenizers, pattern, behavior } = preTokenizer;
  switch (type) {
    case "Sequence":
      return Array.isArray(pretokenizers)
        ? { ...preTokenizer, pretokenizers: pretokenizers.map(toEquivalentPreTokenizer) }
        : preTokenizer;
    case "Whitespace":
      return splitIntoMatches(WORDS_PATTERN);
    case "WhitespaceSplit":
      return splitIntoMatches("[^\\p{White_Space}]+");
    case "BertPreTokenizer":
      return splitIntoMatches(BERT_PATTERN);
    case "Punctuation":
      return split(PUNCTUATION_PATTERN, { behavior: behavior ?? "Isolated", isInverted: false });
    case "Split": {
      const source = getPatternSource(pattern);
      const isInverted = preTokenizer.invert === true;
      return source === undefined ? preTokenizer : split(source, { behavior, isInverted });
    }
    default:
      return preTokenizer;
  }
}

/** Returns the regular expression of a pattern; undefined if it is invalid. */
function getPatternSource(pattern: unknown): string | undefined {
  if (!isJsonObject(pattern)) return undefined;
  if (typeof pattern.Regex === "string") return pattern.Regex;
  return typeof pattern.String === "string" ? pattern.String.replaceAll(/[$()*+.?[\\\]^{|}/-]/g, "\\$&") : undefined;
}

/**
 * Returns a Split by a regular expression. Its matches separate the pieces of text; if it is inverted, the text between
 * matches does.
 */
function split(
  source: string,
  { behavior, isInverted }: { readonly behavior: unknown; readonly isInverted: boolean },
): Json {
  const [match, otherCharacter] = [`(?:${source})`, `(?:(?!${source})\\p{Any})`];
  switch (`${String(behavior)}${isInverted ? ", inverted" : ""}`) {
    case "Removed":
    case "Isolated":
    case "Isolated, inverted":
      return { type: "Split", pattern: { Regex: source }, behavior, invert: false };
    case "Removed, inverted":
      return splitIntoMatches(source);
    case "Contiguous":
    case "Contiguous, inverted":
      return splitIntoMatches(`${match}+|${otherCharacter}+`);
    case "MergedWithPrevious":
      return splitIntoMatches(`${otherCharacter}*${match}|${otherCharacter}+`);
    case "MergedWithNext":
      return splitIntoMatches(`${match}${otherCharacter}*|${otherCharacter}+`);
    default:
      throw new Error(`Split with behavior ${JSON.stringify(behavior)}${isInverted ? " and invert: true" : ""}`);
  }
}

/** Returns a Split of which the pieces are the matches of a regular expression. */
function splitIntoMatches(source: string): Json {
  return { type: "Split", pattern: { Regex: source }, behavior: "Removed", invert: true };
}
