import { describe, expect, it } from "vitest";
import { type Gene, genes, readLambdaGenome } from "../src/genome.ts";
import { formatBases } from "./bases.ts";

/** Codons that begin and end a protein in λ. */
const startCodons = ["ATG", "GTG", "TTG"];
const stopCodons = ["TAA", "TAG", "TGA"];

const genome = readLambdaGenome();

/** Returns the other strand, read in its own direction. */
const reverseComplement = (bases: Uint8Array): Uint8Array => bases.map((base) => 3 - base).reverse();

function splitCodons({ start, end, isComplement }: Gene): readonly string[] {
  const strand = genome.slice(start - 1, end);
  const letters = formatBases(isComplement ? reverseComplement(strand) : strand);
  return letters.match(/.{1,3}/g)!;
}

describe("the genes", () => {
  it("the genome has 48 502 bases and begins with the left cohesive end", () => {
    expect(genome.length).toBe(48_502);
    expect(formatBases(genome.subarray(0, 12))).toBe("GGGCGGCGACCT");
  });

  it.each(genes)("$name is an open reading frame on its strand, from start codon to stop codon", (gene) => {
    const codons = splitCodons(gene);
    expect(codons.at(-1)!.length).toBe(3);
    expect(startCodons).toContain(codons[0]);
    expect(codons.findIndex((codon) => stopCodons.some((stop) => stop === codon))).toBe(codons.length - 1);
  });

  it("are ordered by position and have unique names", () => {
    expect(genes.map(({ start }) => start)).toEqual(genes.map(({ start }) => start).toSorted((a, b) => a - b));
    expect(new Set(genes.map(({ name }) => name)).size).toBe(genes.length);
    expect(genes.length).toBeGreaterThanOrEqual(30);
  });
});
