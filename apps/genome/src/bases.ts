// A token is what stands around a base: words of three letters, side by side, the middle one around the base itself.
import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";

const LETTERS = 5;
const VOCABULARY_SIZE = LETTERS ** 3;
const WORD_OFFSETS = [-9, -6, -3, 0, 3, 6, 9] as const;

/** Words that make a token. */
export const WORDS_PER_TOKEN: number = WORD_OFFSETS.length;
/** Rows of the table that words are looked up in: each place around the base has its own. */
export const WORD_ROWS: number = WORDS_PER_TOKEN * VOCABULARY_SIZE;
/** Letters on either side that a token embeds. */
export const CONTEXT_RADIUS = 10;

/** For each row of the table 1, or 0 if any of its letters is hidden. */
export function unmaskedRows(): Float32Array {
  const hasMask = (word: number): boolean => [25, 5, 1].some((unit) => Math.floor(word / unit) % LETTERS === MASKED);
  return Float32Array.from({ length: WORD_ROWS }, (_, row) => (hasMask(row % VOCABULARY_SIZE) ? 0 : 1));
}

/**
 * The tokens of positions [start, end), each as `WORDS` rows of the table, row-major. Beyond the ends of the sequence
 * nothing is known, as under a mask.
 */
export function tokenize(letters: Uint8Array, start: number, end: number): Int32Array {
  const at = (position: number): number => letters[position] ?? MASKED;
  const words = new Int32Array((end - start) * WORDS_PER_TOKEN);
  for (let position = start; position < end; position++) {
    for (const [i, centre] of WORD_OFFSETS.entries()) {
      const middle = position + centre;
      const word = (at(middle - 1) * LETTERS + at(middle)) * LETTERS + at(middle + 1);
      words[(position - start) * WORDS_PER_TOKEN + i] = i * VOCABULARY_SIZE + word;
    }
  }
  return words;
}

/** Bases as numbers: A 0, C 1, G 2, T 3. */
export type Bases = Uint8Array;

/** What is read where a base is hidden. */
export const MASKED = 4;

/** Bacteriophage λ, NCBI accession NC_001416.1: 48 502 bases; the quickstart's copy. */
const LAMBDA: URL = new URL("../../quickstart/data/lambda_phage_NC_001416.1.fa.gz", import.meta.url);

/** Reads the whole genome. */
export function readLambda(): Bases {
  const lines = gunzipSync(readFileSync(LAMBDA)).toString("latin1").split("\n");
  return parseBases(
    lines
      .filter((line) => !line.startsWith(">"))
      .map((line) => line.trim())
      .join(""),
  );
}

/** "ACGT" as numbers; throws a RangeError for another letter. */
export function parseBases(letters: string): Bases {
  return Uint8Array.from(letters, (letter, i) => {
    const base = "ACGT".indexOf(letter);
    if (base >= 0) return base;
    throw new RangeError(`base ${i + 1}: expected A, C, G or T, received "${letter}"`);
  });
}

/** Numbers as "ACGT", "-" where masked. */
export function formatBases(bases: ArrayLike<number>): string {
  return Array.from(bases, (base) => "ACGT-"[base]).join("");
}

/** The other strand, read in its own direction. */
export function reverseComplement(bases: Bases): Bases {
  return bases.map((base) => 3 - base).reverse();
}
