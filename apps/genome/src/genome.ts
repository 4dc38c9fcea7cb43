// A token represents the surroundings of a base: adjacent words of three letters, the middle word centered on the base.
import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";

const NUM_BASE_LETTERS = 5;
const VOCABULARY_SIZE = NUM_BASE_LETTERS ** 3;
const WORD_OFFSETS = [-9, -6, -3, 0, 3, 6, 9] as const;

/** Number of words in a token. */
export const WORDS_PER_TOKEN: number = WORD_OFFSETS.length;
/** Number of rows in the embedding table of words. Each word position around the base has separate rows. */
export const NUM_EMBEDDINGS: number = WORDS_PER_TOKEN * VOCABULARY_SIZE;

/** Returns 1 for each row of the table, or 0 if any of the row's letters is masked. */
export function createUnmaskedRowIndicators(): Float32Array {
  const hasMask = (word: number): boolean =>
    [25, 5, 1].some((placeValue) => Math.floor(word / placeValue) % NUM_BASE_LETTERS === MASKED_BASE);
  return Float32Array.from({ length: NUM_EMBEDDINGS }, (_, row) => (hasMask(row % VOCABULARY_SIZE) ? 0 : 1));
}

/**
 * Returns the tokens of positions [start, end), each as `WORDS_PER_TOKEN` row indices of the table, row-major.
 * Positions beyond the ends of the sequence are treated as masked.
 */
export function tokenize(bases: Uint8Array, start: number, end: number): Int32Array {
  const baseAt = (position: number): number => bases[position] ?? MASKED_BASE;
  const words = new Int32Array((end - start) * WORDS_PER_TOKEN);
  for (let position = start; position < end; position++) {
    for (const [i, wordOffset] of WORD_OFFSETS.entries()) {
      const middlePosition = position + wordOffset;
      const word =
        (baseAt(middlePosition - 1) * NUM_BASE_LETTERS + baseAt(middlePosition)) * NUM_BASE_LETTERS +
        baseAt(middlePosition + 1);
      words[(position - start) * WORDS_PER_TOKEN + i] = i * VOCABULARY_SIZE + word;
    }
  }
  return words;
}

/** Bases as numbers: A 0, C 1, G 2, T 3. */
export type Bases = Uint8Array;

/** Value of a masked base. */
export const MASKED_BASE = 4;

/** Bacteriophage λ, NCBI accession NC_001416.1: 48 502 bases; the quickstart's copy. */
const LAMBDA_PATH: URL = new URL("../../quickstart/data/lambda_phage_NC_001416.1.fa.gz", import.meta.url);

/** Reads the whole genome. */
export function readLambdaGenome(): Bases {
  const lines = gunzipSync(readFileSync(LAMBDA_PATH)).toString("latin1").split("\n");
  return parseBases(
    lines
      .filter((line) => !line.startsWith(">"))
      .map((line) => line.trim())
      .join(""),
  );
}

/** Parses "ACGT" to numbers. Throws a RangeError for another letter. */
export function parseBases(sequence: string): Bases {
  return Uint8Array.from(sequence, (letter, i) => {
    const base = "ACGT".indexOf(letter);
    if (base >= 0) return base;
    throw new RangeError(`base ${i + 1}: expected A, C, G or T, received "${letter}"`);
  });
}

/** A protein-coding gene: 1-based positions of its first and last base, stop codon included, on the deposited strand. */
export interface Gene {
  readonly name: string;
  readonly start: number;
  readonly end: number;
  /** Whether the gene is read from end to start on the other strand. */
  readonly isComplement: boolean;
  readonly role: Role;
}

/** Role of a gene, which determines its color. */
export type Role = "head" | "tail" | "recombination" | "control" | "replication" | "lysis" | "other";

type GeneRow = readonly [name: string, start: number, end: number, role: Role];

const forwardStrandGenes: readonly GeneRow[] = [
  ["nu1", 191, 736, "head"],
  ["A", 711, 2636, "head"],
  ["W", 2633, 2839, "head"],
  ["B", 2836, 4437, "head"],
  ["C", 4418, 5737, "head"],
  ["nu3", 5132, 5737, "head"],
  ["D", 5747, 6079, "head"],
  ["E", 6135, 7160, "head"],
  ["FI", 7202, 7600, "head"],
  ["FII", 7612, 7965, "head"],
  ["Z", 7977, 8555, "tail"],
  ["U", 8552, 8947, "tail"],
  ["V", 8955, 9695, "tail"],
  ["G", 9711, 10133, "tail"],
  ["T", 10115, 10549, "tail"],
  ["H", 10542, 13103, "tail"],
  ["M", 13100, 13429, "tail"],
  ["L", 13429, 14127, "tail"],
  ["K", 14276, 14875, "tail"],
  ["I", 14773, 15444, "tail"],
  ["J", 15505, 18903, "tail"],
  ["lom", 18965, 19585, "other"],
  ["stf′", 19650, 20855, "tail"],
  ["stf″", 21029, 21973, "tail"],
  ["tfa", 21973, 22557, "tail"],
  ["cro", 38041, 38241, "control"],
  ["cII", 38360, 38653, "control"],
  ["O", 38686, 39585, "replication"],
  ["P", 39582, 40283, "replication"],
  ["ren", 40280, 40570, "other"],
  ["ninB", 40644, 41084, "recombination"],
  ["ninG", 42429, 43043, "recombination"],
  ["Q", 43886, 44509, "control"],
  ["S", 45186, 45509, "lysis"],
  ["R", 45493, 45969, "lysis"],
  ["Rz", 45966, 46427, "lysis"],
];

const reverseStrandGenes: readonly GeneRow[] = [
  ["ea47", 22686, 23918, "other"],
  ["ea31", 24509, 25399, "other"],
  ["ea59", 25396, 26973, "other"],
  ["int", 27812, 28882, "recombination"],
  ["xis", 28860, 29078, "recombination"],
  ["ea22", 29847, 30395, "other"],
  ["exo", 31348, 32028, "recombination"],
  ["bet", 32025, 32810, "recombination"],
  ["gam", 32816, 33232, "recombination"],
  ["cIII", 33299, 33463, "control"],
  ["N", 35037, 35438, "control"],
  ["rexB", 35825, 36259, "other"],
  ["rexA", 36275, 37114, "other"],
  ["cI", 37227, 37940, "control"],
  ["bor", 46459, 46752, "other"],
];

const createGenes = (rows: readonly GeneRow[], isComplement: boolean): readonly Gene[] =>
  rows.map(([name, start, end, role]) => ({ name, start, end, role, isComplement }));

/**
 * λ's main genes in the order of the genome, from the annotation of GenBank record NC_001416.1 (21 April 2009; after J02459,
 * Sanger et al. 1982, Daniels et al. 1983). stf′ and stf″, there orf-401 and orf-314, are the halves of a side-tail-fibre gene
 * that a frameshift split, and tfa is orf-194 (Hendrix and Duda 1992). A test reads each gene from the sequence.
 */
export const genes: readonly Gene[] = [
  ...createGenes(forwardStrandGenes, false),
  ...createGenes(reverseStrandGenes, true),
].sort((a, b) => a.start - b.start);
