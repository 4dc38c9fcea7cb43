import { describe, expect, it } from "vitest";
import { parseFasta, readGenome, tokenAtPosition } from "../src/embed.ts";

describe("the genome", () => {
  it("has the 48 502 bases of λ, and begins with its left cohesive end", () => {
    const genome = readGenome();
    expect(genome.length).toBe(48_502);
    expect(Array.from(genome.subarray(0, 12), (base) => "ACGT"[base]).join("")).toBe("GGGCGGCGACCT");
    const counts = [0, 1, 2, 3].map((base) => genome.filter((each) => each === base).length);
    expect(counts).toEqual([12_334, 11_362, 12_820, 11_986]);
  });

  it("is parsed from FASTA with headers, line ends and lower case", () => {
    expect(Array.from(parseFasta(">name\r\nACgt\n\nTT\n"))).toEqual([0, 1, 2, 3, 3, 3]);
  });

  it("is rejected with the line of an invalid letter", () => {
    expect(() => parseFasta(">name\nACGT\nACNT\n")).toThrow('line 3: expected A, C, G or T, received "N"');
    expect(() => parseFasta(">name only\n")).toThrow("no bases");
  });

  it("is divided into tokens of six bases that wrap around at the end", () => {
    const genome = parseFasta("ACGTTTG");
    expect(tokenAtPosition(genome, 0)).toBe(0b00_01_10_11_11_11);
    expect(tokenAtPosition(genome, 4)).toBe(0b11_11_10_00_01_10);
    expect(tokenAtPosition(genome, 7)).toBe(tokenAtPosition(genome, 0));
  });
});
