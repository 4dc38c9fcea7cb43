import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";

/** Bases as numbers: A 0, C 1, G 2, T 3. */
export type Bases = Uint8Array;

/** What is read where a base is hidden. */
export const MASKED = 4;

/** Bacteriophage λ, NCBI accession NC_001416.1: 48 502 bases; the quickstart's copy. */
const LAMBDA: URL = new URL("../../quickstart/data/lambda_phage_NC_001416.1.fa.gz", import.meta.url);

/** Reads the whole genome. */
export function readLambda(): Bases {
  const lines = gunzipSync(readFileSync(LAMBDA)).toString("latin1").split("\n");
  return basesOf(
    lines
      .filter((line) => !line.startsWith(">"))
      .map((line) => line.trim())
      .join(""),
  );
}

/** "ACGT" as numbers; throws a RangeError for another letter. */
export function basesOf(letters: string): Bases {
  return Uint8Array.from(letters, (letter, i) => {
    const base = "ACGT".indexOf(letter);
    if (base >= 0) return base;
    throw new RangeError(`base ${i + 1}: expected A, C, G or T, received "${letter}"`);
  });
}

/** Numbers as "ACGT", "-" where masked. */
export function lettersOf(bases: ArrayLike<number>): string {
  return Array.from(bases, (base) => "ACGT-"[base]).join("");
}

/** The other strand, read in its own direction. */
export function reverseComplement(bases: Bases): Bases {
  return bases.map((base) => 3 - base).reverse();
}
