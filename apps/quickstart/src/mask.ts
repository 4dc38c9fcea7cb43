import { type Mask, masks } from "@mosaic/attention";
import { type MaskChoice, type MaskName, maskNames } from "./job.ts";
import { randomNormals } from "./reference.ts";

/** A mask that this program offers. */
interface MaskEntry {
  /** What its number counts, and how large it is if none is given; absent for a mask without one. */
  readonly size?: { readonly unitName: string; defaultSize(tokens: number): number };
  /** In words, for titles. */
  describe(size: number): string;
  create(tokens: number, size: number): Mask;
}

const maskTable: Readonly<Record<MaskName, MaskEntry>> = {
  full: { describe: () => "no mask", create: () => masks.full() },
  causal: { describe: () => "causal", create: () => masks.causal() },
  documents: {
    size: { unitName: "documents", defaultSize: (tokens) => Math.min(32, tokens) },
    describe: (size) => `${size} ${size === 1 ? "document" : "documents"}, each causal`,
    create: (tokens, size) => masks.documents(documentLengths(tokens, size), "causal"),
  },
  window: {
    size: { unitName: "tokens", defaultSize: (tokens) => Math.ceil(tokens / 16) },
    describe: (size) => `causal window of ${size} tokens`,
    create: (_, size) => masks.slidingWindow(size),
  },
  "block-causal": {
    size: { unitName: "tokens", defaultSize: (tokens) => Math.ceil(tokens / 16) },
    describe: (size) => `block-causal, blocks of ${size} tokens`,
    create: (_, size) => masks.blockCausal(size),
  },
};

/** "documents:N" where there is a number, for the help and for errors. */
export function maskForms(): readonly string[] {
  return maskNames.map((name) => (maskTable[name].size ? `${name}[:N]` : name));
}

/** "documents:8" for so many tokens, with the mask's default where there is no number; undefined for what is none. */
export function parseMask(text: string, tokens: number): MaskChoice | undefined {
  const [, word, digits] = /^([a-z-]+)(?::(\d+))?$/.exec(text) ?? [];
  const name = maskNames.find((maskName) => maskName === word);
  if (name === undefined) return undefined;
  const { size } = maskTable[name];
  if (!size) return digits === undefined ? { name } : undefined;
  const chosenSize = digits === undefined ? size.defaultSize(tokens) : Number(digits);
  return chosenSize >= 1 && chosenSize <= tokens ? { name, size: chosenSize } : undefined;
}

/** "documents:8". */
export function formatMask({ name, size }: MaskChoice): string {
  return size === undefined ? name : `${name}:${size}`;
}

/** "8 documents, each causal". */
export function describeMask({ name, size = 0 }: MaskChoice): string {
  return maskTable[name].describe(size);
}

/** The mask itself, over so many tokens. */
export function createMask({ name, size = 0 }: MaskChoice, tokens: number): Mask {
  return maskTable[name].create(tokens, size);
}

/** The spread of ln(length) that packed corpora have: most documents are short, and most tokens are of long ones. */
const LOG_LENGTH_STD = 1.4;

/** Lengths of documents that fill a sequence, very unequal, each at least 1: log-normal draws, the same in every run. */
export function documentLengths(tokens: number, count: number): readonly number[] {
  const weights = Array.from(randomNormals(count, count), (x) => Math.exp(LOG_LENGTH_STD * x));
  const totalWeight = weights.reduce((sum, weight) => sum + weight, 0);
  const spareTokens = tokens - count;
  let [cumulativeWeight, filledTokens] = [0, 0];
  return weights.map((weight) => {
    cumulativeWeight += weight;
    const end = Math.round((cumulativeWeight / totalWeight) * spareTokens);
    const length = 1 + end - filledTokens;
    filledTokens = end;
    return length;
  });
}
