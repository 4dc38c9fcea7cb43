import { MASKED } from "./bases.ts";

// A token is what stands around a base: words of three letters, side by side, the middle one around the base itself.

const LETTERS = 5;
const WORD_KINDS = LETTERS ** 3;
const CENTRES = [-9, -6, -3, 0, 3, 6, 9] as const;

/** Words that make a token. */
export const WORDS: number = CENTRES.length;
/** Rows of the table that words are looked up in: each place around the base has its own. */
export const WORD_ROWS: number = WORDS * WORD_KINDS;
/** Letters on either side that a token embeds. */
export const REACH = 10;

/** For each row of the table 1, or 0 if any of its letters is hidden. */
export function knownWords(): Float32Array {
  const hasMask = (word: number): boolean => [25, 5, 1].some((unit) => Math.floor(word / unit) % LETTERS === MASKED);
  return Float32Array.from({ length: WORD_ROWS }, (_, row) => (hasMask(row % WORD_KINDS) ? 0 : 1));
}

/**
 * The tokens of positions [start, end), each as `WORDS` rows of the table, row-major. Beyond the ends of the sequence
 * nothing is known, as under a mask.
 */
export function wordsAt(letters: Uint8Array, start: number, end: number): Int32Array {
  const at = (position: number): number => letters[position] ?? MASKED;
  const words = new Int32Array((end - start) * WORDS);
  for (let position = start; position < end; position++) {
    for (const [i, centre] of CENTRES.entries()) {
      const middle = position + centre;
      const word = (at(middle - 1) * LETTERS + at(middle)) * LETTERS + at(middle + 1);
      words[(position - start) * WORDS + i] = i * WORD_KINDS + word;
    }
  }
  return words;
}
