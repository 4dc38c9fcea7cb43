import { masks } from "@mosaic/attention";
import { describe, expect, it } from "vitest";
import { createMask, describeMask, documentLengths, formatMask, maskForms, parseMask } from "../src/mask.ts";

const { maskArea } = masks;

describe("masks of the command line", () => {
  it("have the areas that their names state", () => {
    const computeArea = (text: string): number => maskArea(createMask(parseMask(text, 64)!, 64), 64, 64);
    expect(computeArea("full")).toBe(64 * 64);
    expect(computeArea("causal")).toBe((64 * 65) / 2);
    expect(computeArea("window:5")).toBe(64 * 5 - 10);
    expect(computeArea("block-causal:16")).toBe(16 * 16 * 10);
    const lengths = documentLengths(64, 3);
    expect(computeArea("documents:3")).toBe(lengths.reduce((sum, length) => sum + (length * (length + 1)) / 2, 0));
  });

  it("are formatted as they are parsed, with their argument", () => {
    for (const text of ["full", "causal", "documents:8", "window:3", "block-causal:64"])
      expect(formatMask(parseMask(text, 64)!)).toBe(text);
    for (const form of maskForms()) expect(formatMask(parseMask(form.replace("[:N]", ""), 64)!)).not.toContain("N");
    expect(describeMask(parseMask("documents:1", 64)!)).toBe("1 document, each causal");
    expect(describeMask(parseMask("documents:8", 64)!)).toBe("8 documents, each causal");
  });

  it.each([
    [48_502, 32],
    [1000, 1],
    [5, 5],
    [100_000, 1000],
  ])("documents fill %i tokens with %i documents of very unequal length, each at least 1", (tokens, count) => {
    const lengths = documentLengths(tokens, count);
    expect(lengths).toHaveLength(count);
    expect(lengths.reduce((sum, length) => sum + length, 0)).toBe(tokens);
    expect(Math.min(...lengths)).toBeGreaterThanOrEqual(1);
    expect(documentLengths(tokens, count)).toEqual(lengths);
    if (tokens > 100 * count && count > 1) {
      const sorted = lengths.toSorted((a, b) => a - b);
      expect(sorted.at(-1)! / sorted[count >> 1]!).toBeGreaterThan(5);
    }
  });
});
