// Syntax of --mask: slidingWindow:4096, documents:8k,4x2k:causal, A+B, A&B.
import { type Mask, masks, MosaicError, resolveSlices } from "@mosaic/core";
import { UsageError } from "./load.ts";
import { formatText, parseCount } from "./quantity.ts";

/**
 * Syntax of a mask. `create` makes it from the arguments after its name, separated by colons; undefined if they are
 * invalid.
 */
interface MaskRule {
  readonly usages: readonly string[];
  create(args: readonly string[]): Mask | undefined;
}

function createPlainRule(name: "full" | "causal" | "inverseCausal" | "bidirectionalCausal"): MaskRule {
  return { usages: [name], create: (args) => (args.length === 0 ? masks[name]() : undefined) };
}

function createSizeRule(name: "prefix" | "blockCausal"): MaskRule {
  return {
    usages: [`${name}:N`],
    create: ([size, ...extraArgs]) =>
      size === undefined || extraArgs.length > 0 ? undefined : masks[name](parseCount(`mask ${name}`, size)),
  };
}

const maskRules: Readonly<Record<string, MaskRule>> = {
  full: createPlainRule("full"),
  causal: createPlainRule("causal"),
  inverseCausal: createPlainRule("inverseCausal"),
  bidirectionalCausal: createPlainRule("bidirectionalCausal"),
  slidingWindow: {
    usages: ["slidingWindow:N", "slidingWindow:LEFT:RIGHT"],
    create: ([windowSize, right, ...extraArgs]) => {
      if (windowSize === undefined || extraArgs.length > 0) return undefined;
      const where = "mask slidingWindow";
      if (right === undefined) return masks.slidingWindow(parseCount(where, windowSize));
      return masks.slidingWindow({ left: parseCount(where, windowSize, 0), right: parseCount(where, right, 0) });
    },
  },
  prefix: createSizeRule("prefix"),
  blockCausal: createSizeRule("blockCausal"),
  globalTokens: {
    usages: ["globalTokens:N", "globalTokens:N:queries"],
    create: ([count, queries, ...extraArgs]) => {
      if (count === undefined || extraArgs.length > 0 || (queries !== undefined && queries !== "queries"))
        return undefined;
      return masks.globalTokens(parseCount("mask globalTokens", count), { queries: queries !== undefined });
    },
  },
  documents: {
    usages: ["documents:LENGTHS", "documents:LENGTHS:MASK"],
    create: ([lengths, ...innerArgs]) => {
      if (lengths === undefined) return undefined;
      return masks.documents(
        parseLengths("mask documents", lengths),
        innerArgs.length === 0 ? "full" : parseAtom(innerArgs),
      );
    },
  },
  shareQuestion: {
    usages: ["shareQuestion:N:LENGTHS"],
    create: ([questionLengthText, answerLengthsText, ...extraArgs]) => {
      if (questionLengthText === undefined || answerLengthsText === undefined || extraArgs.length > 0) return undefined;
      const where = "mask shareQuestion";
      return masks.shareQuestion(parseCount(where, questionLengthText, 0), parseLengths(where, answerLengthsText));
    },
  },
};

/** Everything that --mask accepts, except the operators that join masks, in the order of the help. */
export const maskUsages: readonly string[] = Object.values(maskRules).flatMap(({ usages }) => usages);

/**
 * Parses a mask. `A+B` is the union of two masks, `A&B` their intersection; & binds more tightly.
 *
 * @example
 * ```ts
 * import { parseMask } from "@mosaic/strategies/command-line";
 * parseMask("slidingWindow:4+causal&globalTokens:2").name; // => "or(slidingWindow(4), and(causal, globalTokens(2)))"
 * ```
 * @throws UsageError that lists the accepted masks.
 */
export function parseMask(text: string): Mask {
  const alternatives = formatText(text)
    .split("+")
    .map((alternativeText) => {
      const atomMasks = alternativeText.split("&").map((atom) => parseAtom(atom.split(":")));
      return atomMasks.length === 1 ? atomMasks[0]! : masks.and(...atomMasks);
    });
  return alternatives.length === 1 ? alternatives[0]! : masks.or(...alternatives);
}

function parseAtom(nameAndArgs: readonly string[]): Mask {
  const [name, ...args] = nameAndArgs as readonly [string, ...string[]];
  const mask = Object.hasOwn(maskRules, name) ? maskRules[name]!.create(args) : undefined;
  if (mask) return mask;
  throw new UsageError(`--mask: expected one of ${maskUsages.join(", ")}, received "${nameAndArgs.join(":")}"`);
}

/** Parses lengths separated by commas, with optional repeat counts: 8k,512,4x2k. */
function parseLengths(name: string, text: string): readonly number[] {
  return text.split(",").flatMap((lengthText) => {
    const [length, count] = lengthText.split("x").toReversed() as [string, string | undefined];
    if (lengthText.split("x").length > 2) throw createLengthsError(name, lengthText);
    const repeatCount = count === undefined ? 1 : parseCount(name, count);
    if (repeatCount > MAX_DOCUMENTS) throw createLengthsError(name, lengthText);
    return new Array<number>(repeatCount).fill(parseCount(name, length));
  });
}

const MAX_DOCUMENTS = 1_000_000;

function createLengthsError(name: string, lengthText: string): UsageError {
  return new UsageError(`--${name}: expected lengths such as 8k,512,4x2k, received "${lengthText}"`);
}

/**
 * Checks that a mask is valid for sequences of this many tokens. `text` is what the user wrote.
 *
 * @example
 * ```ts
 * import { checkMaskLength, parseMask } from "@mosaic/strategies/command-line";
 * checkMaskLength("documents:4,4", parseMask("documents:4,4"), 9); // throws --mask documents:4,4
 * ```
 * @throws UsageError unless it is.
 */
export function checkMaskLength(text: string, mask: Mask, tokens: number): void {
  try {
    resolveSlices(mask, tokens, tokens);
  } catch (error) {
    if (!(error instanceof MosaicError)) throw error;
    throw new UsageError(`--mask ${formatText(text)}: ${error.message}`, { cause: error });
  }
}
