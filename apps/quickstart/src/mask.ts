import { type Mask, masks } from "@mosaic/attention";
import { type MaskChoice, type MaskName, maskNames } from "./job.ts";
import { randomNormals } from "./reference.ts";

/** A mask that this program offers. */
interface MaskEntry {
  /** Unit and default of the mask's argument. Absent for a mask without an argument. */
  readonly argument?: { readonly unitName: string; defaultValue(tokens: number): number };
  /** Returns a description for titles. */
  describe(argument: number): string;
  create(tokens: number, argument: number): Mask;
}

const maskTable: Readonly<Record<MaskName, MaskEntry>> = {
  full: { describe: () => "no mask", create: () => masks.full() },
  causal: { describe: () => "causal", create: () => masks.causal() },
  documents: {
    argument: { unitName: "documents", defaultValue: (tokens) => Math.min(32, tokens) },
    describe: (numDocuments) => `${numDocuments} ${numDocuments === 1 ? "document" : "documents"}, each causal`,
    create: (tokens, numDocuments) => masks.documents(documentLengths(tokens, numDocuments), "causal"),
  },
  window: {
    argument: { unitName: "tokens", defaultValue: (tokens) => Math.ceil(tokens / 16) },
    describe: (size) => `causal window of ${size} tokens`,
    create: (_, size) => masks.slidingWindow(size),
  },
  "block-causal": {
    argument: { unitName: "tokens", defaultValue: (tokens) => Math.ceil(tokens / 16) },
    describe: (size) => `block-causal, blocks of ${size} tokens`,
    create: (_, size) => masks.blockCausal(size),
  },
};

/** Returns the accepted forms of masks for the help and for errors, with "[:N]" if a mask has an argument. */
export function maskForms(): readonly string[] {
  return maskNames.map((name) => (maskTable[name].argument ? `${name}[:N]` : name));
}

/** Parses text such as "documents:8", with the mask's default if there is no number. Undefined if it is not a mask. */
export function parseMask(text: string, tokens: number): MaskChoice | undefined {
  const [, word, digits] = /^([a-z-]+)(?::(\d+))?$/.exec(text) ?? [];
  const name = maskNames.find((maskName) => maskName === word);
  if (name === undefined) return undefined;
  const { argument } = maskTable[name];
  if (!argument) return digits === undefined ? { name } : undefined;
  const value = digits === undefined ? argument.defaultValue(tokens) : Number(digits);
  return value >= 1 && value <= tokens ? { name, argument: value } : undefined;
}

/** Formats a mask as, for example, "documents:8". */
export function formatMask({ name, argument }: MaskChoice): string {
  return argument === undefined ? name : `${name}:${argument}`;
}

/** Describes a mask as, for example, "8 documents, each causal". */
export function describeMask({ name, argument = 0 }: MaskChoice): string {
  return maskTable[name].describe(argument);
}

/** Creates the mask for a sequence of `tokens` tokens. */
export function createMask({ name, argument = 0 }: MaskChoice, tokens: number): Mask {
  return maskTable[name].create(tokens, argument);
}

/** Standard deviation of ln(length), as in packed corpora: most documents are short, most tokens are in long ones. */
const LOG_LENGTH_STD = 1.4;

/** Returns log-normal lengths of documents that fill a sequence, each at least 1. They are the same in every run. */
export function documentLengths(tokens: number, count: number): readonly number[] {
  const weights = Array.from(randomNormals(count, count), (x) => Math.exp(LOG_LENGTH_STD * x));
  const totalWeight = weights.reduce((sum, weight) => sum + weight, 0);
  const spareTokens = tokens - count;
  let [cumulativeWeight, assignedSpareTokens] = [0, 0];
  return weights.map((weight) => {
    cumulativeWeight += weight;
    const cumulativeSpareTokens = Math.round((cumulativeWeight / totalWeight) * spareTokens);
    const length = 1 + cumulativeSpareTokens - assignedSpareTokens;
    assignedSpareTokens = cumulativeSpareTokens;
    return length;
  });
}
