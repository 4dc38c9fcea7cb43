import { describe, expect, it } from "vitest";
import { parseSettings } from "../src/settings.ts";
import { MASKED_BASE, readLambdaGenome, tokenize, NUM_EMBEDDINGS, WORDS_PER_TOKEN } from "../src/genome.ts";
import {
  HELD_OUT_RANGE,
  maskBases,
  IGNORE_INDEX,
  KEY_MARKER,
  MOTIF_LENGTH,
  plantRepeats,
  drawTrainingStart,
} from "../src/masked-bases.ts";
import { formatBases } from "./bases.ts";
import { Random } from "@mosaic/program";
import { SampleSource } from "../src/samples.ts";

const genome = readLambdaGenome();

describe("masked bases", () => {
  it("masks about 15 % of the bases, and sets targets for masked bases only", () => {
    const { bases, targets } = maskBases(genome, { start: 48_000, length: 4000 }, new Random(1));
    const numMasked = Array.from(bases).filter((letter) => letter === MASKED_BASE).length;
    expect(numMasked / 4000).toBeCloseTo(0.15, 1);
    bases.forEach((letter, i) => {
      const base = genome[(48_000 + i) % genome.length]!;
      expect([letter, targets[i]]).toEqual(letter === MASKED_BASE ? [MASKED_BASE, base] : [base, IGNORE_INDEX]);
    });
  });

  it("never starts or ends a training sequence in the held-out range", () => {
    const random = new Random(2);
    const length = 2048;
    for (let i = 0; i < 500; i++) {
      const start = drawTrainingStart(genome, length, random);
      const endPositions = [start, start + length - 1].map((position) => position % genome.length);
      for (const position of endPositions)
        expect(position < HELD_OUT_RANGE.start || position >= HELD_OUT_RANGE.end).toBe(true);
    }
  });
});

/** Draws the largest integer of each range. */
class LargestRandom extends Random {
  override integer(end: number): number {
    return end - 1;
  }
}

describe("the last position", () => {
  it("of a training sequence is before the held-out range", () => {
    const start = drawTrainingStart(genome, 2048, new LargestRandom(0));
    expect((start + 2048) % genome.length).toBe(HELD_OUT_RANGE.start);
  });

  it("of a motif is within its chunk", () => {
    for (const seed of [0, 1, 2, 3]) {
      const { bases } = plantRepeats(genome, { chunks: 8, chunkLength: MOTIF_LENGTH }, new Random(seed));
      for (let start = 0; start < bases.length; start += MOTIF_LENGTH)
        expect(bases.subarray(start, start + KEY_MARKER.length)).toEqual(KEY_MARKER);
    }
  });
});

describe("planted repeats", () => {
  const chunkShape = { chunks: 16, chunkLength: 48 };

  it("uses a marker that does not occur in λ", () => {
    expect(formatBases(genome).includes(formatBases(KEY_MARKER))).toBe(false);
  });

  it.each([0, 1, 2, 3])("plants each hidden motif in exactly one other chunk, seed %i", (seed) => {
    const { bases, targets, sources } = plantRepeats(genome, chunkShape, new Random(seed));
    const marker = formatBases(KEY_MARKER);
    const plantedChunks = Array.from({ length: chunkShape.chunks }, (_, chunk) => {
      const chunkStart = chunk * chunkShape.chunkLength;
      const start =
        chunkStart + formatBases(bases.subarray(chunkStart, chunkStart + chunkShape.chunkLength)).indexOf(marker);
      const motifTargets = Array.from(targets.subarray(start, start + MOTIF_LENGTH));
      const maskedMotif = bases.subarray(start, start + MOTIF_LENGTH);
      const unmaskedMotif = maskedMotif.map((letter, i) => (letter === MASKED_BASE ? motifTargets[i]! : letter));
      return { seen: formatBases(maskedMotif), whole: formatBases(unmaskedMotif) };
    });
    expect(sources.size).toBe(chunkShape.chunks / 2);
    expect(new Set([...sources.keys(), ...sources.values()]).size).toBe(chunkShape.chunks);
    for (const [query, source] of sources) {
      expect(Math.abs(query - source)).toBeGreaterThan(1);
      expect(plantedChunks[query]!.seen).toContain("------");
      expect(plantedChunks[source]!.seen).toBe(plantedChunks[query]!.whole);
      // The key is in no third chunk.
      const key = plantedChunks[source]!.whole.slice(marker.length, marker.length + 8);
      expect(plantedChunks.filter(({ whole }) => whole.startsWith(marker + key)).length).toBe(2);
    }
    expect(targets.filter((target) => target !== IGNORE_INDEX).length).toBe(6 * sources.size);
  });

  it("repeats sequences for the same step and seed, and draws different ones otherwise", () => {
    const createSource = (seed: string): SampleSource =>
      new SampleSource(parseSettings(["--task", "planted", "--seed", seed]));
    const source = createSource("3");
    const formatSample = (sample: { bases: Uint8Array }): string => formatBases(sample.bases);
    expect(source.trainingSamples(4).map(formatSample)).toEqual(createSource("3").trainingSamples(4).map(formatSample));
    const sampleTexts = [
      ...source.trainingSamples(4),
      ...source.trainingSamples(5),
      ...createSource("4").trainingSamples(4),
      source.heldOutSample(16),
    ].map(formatSample);
    expect(new Set(sampleTexts).size).toBe(sampleTexts.length);
  });
});

describe("words", () => {
  it("depend on the ten bases on either side, and on no others", () => {
    const { bases } = maskBases(genome, { start: 0, length: 60 }, new Random(0));
    const genomeTokens = tokenize(bases, 0, 60);
    expect(genomeTokens.length).toBe(60 * WORDS_PER_TOKEN);
    expect(Math.max(...genomeTokens)).toBeLessThan(NUM_EMBEDDINGS);
    // A rank that computes only its own rows obtains the same tokens.
    expect(tokenize(bases, 20, 40)).toEqual(genomeTokens.slice(20 * WORDS_PER_TOKEN, 40 * WORDS_PER_TOKEN));
    const changedBases = bases.slice();
    changedBases[30] = (bases[30]! + 1) % 4;
    const changedPositions = Array.from({ length: 60 }, (_, i) => i).filter((i) =>
      tokenize(changedBases, i, i + 1).some((word, j) => word !== genomeTokens[i * WORDS_PER_TOKEN + j]),
    );
    expect(changedPositions).toEqual(Array.from({ length: 21 }, (_, i) => 20 + i));
  });
});
