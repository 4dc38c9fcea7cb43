/** A protein-coding gene: 1-based positions of its first and last base, stop codon included, on the deposited strand. */
export interface Gene {
  readonly name: string;
  readonly start: number;
  readonly end: number;
  /** Read from end to start on the other strand. */
  readonly complement: boolean;
  readonly role: Role;
}

/** What genes are coloured by. */
export type Role = "head" | "tail" | "recombination" | "control" | "replication" | "lysis" | "other";

type Row = readonly [name: string, start: number, end: number, role: Role];

const rightward: readonly Row[] = [
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

const leftward: readonly Row[] = [
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

const toGenes = (rows: readonly Row[], complement: boolean): readonly Gene[] =>
  rows.map(([name, start, end, role]) => ({ name, start, end, role, complement }));

/**
 * λ's main genes in the order of the genome, from the annotation of GenBank record NC_001416.1 (21 April 2009; after J02459,
 * Sanger et al. 1982, Daniels et al. 1983). stf′ and stf″, there orf-401 and orf-314, are the halves of a side-tail-fibre gene
 * that a frameshift split, and tfa is orf-194 (Hendrix and Duda 1992). A test reads each from the sequence itself.
 */
export const genes: readonly Gene[] = [...toGenes(rightward, false), ...toGenes(leftward, true)].sort(
  (a, b) => a.start - b.start,
);

/** Begins a protein in λ. */
export const startCodons = ["ATG", "GTG", "TTG"] as const;
/** Ends one. */
export const stopCodons = ["TAA", "TAG", "TGA"] as const;
