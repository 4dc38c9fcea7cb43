import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import { type Bases, parseFasta } from "../../quickstart/src/genome.ts";

export type { Bases } from "../../quickstart/src/genome.ts";

/** What is read where a base is hidden; bases are A 0, C 1, G 2, T 3. */
export const MASKED = 4;

/** Bacteriophage λ, NCBI accession NC_001416.1: 48 502 bases; the quickstart's copy. */
const LAMBDA: URL = new URL("../../quickstart/data/lambda_phage_NC_001416.1.fa.gz", import.meta.url);

/** Reads the whole genome. */
export function readLambda(): Bases {
  return parseFasta(gunzipSync(readFileSync(LAMBDA)).toString("latin1"));
}

/** "ACGT" as numbers. */
export function basesOf(letters: string): Uint8Array {
  return Uint8Array.from(letters, (letter) => "ACGT".indexOf(letter));
}

/** Numbers as "ACGT", "-" where masked. */
export function lettersOf(bases: ArrayLike<number>): string {
  return Array.from(bases, (base) => "ACGT-"[base]).join("");
}

/** The other strand, read in its own direction. */
export function reverseComplement(bases: Bases): Bases {
  return bases.map((base) => 3 - base).reverse();
}
