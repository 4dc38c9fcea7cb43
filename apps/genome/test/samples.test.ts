import { describe, expect, it } from "vitest";
import { parseSettings } from "../src/settings.ts";
import {
  CONTEXT_RADIUS,
  formatBases,
  MASKED_BASE,
  readLambdaGenome,
  tokenize,
  WORD_VOCABULARY_SIZE,
  WORDS_PER_TOKEN,
} from "../src/genome.ts";
import {
  HELD_OUT_RANGE,
  maskBases,
  IGNORE_INDEX,
  KEY_MARKER,
  MOTIF_LENGTH,
  plantRepeats,
  drawTrainingStart,
} from "../src/masked-bases.ts";
import { Random } from "@mosaic/program";
import { SampleSource } from "../src/samples.ts";

const genome = readLambdaGenome();

describe("masked bases", () => {
  it("masks some 15 %, and has targets for just those", () => {
    const { bases, targets } = maskBases(genome, { start: 48_000, length: 4000 }, new Random(1));
    const hidden = Array.from(bases).filter((letter) => letter === MASKED_BASE).length;
    expect(hidden / 4000).toBeCloseTo(0.15, 1);
    bases.forEach((letter, i) => {
      const base = genome[(48_000 + i) % genome.length]!;
      expect([letter, targets[i]]).toEqual(letter === MASKED_BASE ? [MASKED_BASE, base] : [base, IGNORE_INDEX]);
    });
  });

  it("never trains on what is held out", () => {
    const random = new Random(2);
    const length = 2048;
    for (let i = 0; i < 500; i++) {
      const start = drawTrainingStart(genome, length, random);
      const touched = [start, start + length - 1].map((place) => place % genome.length);
      for (const place of touched) expect(place < HELD_OUT_RANGE.start || place >= HELD_OUT_RANGE.end).toBe(true);
    }
  });
});

describe("planted repeats", () => {
  const cut = { chunks: 16, chunkLength: 48 };

  it("uses a marker that λ does not have", () => {
    expect(formatBases(genome).includes(formatBases(KEY_MARKER))).toBe(false);
  });

  it.each([0, 1, 2, 3])("explains each hidden repeat by one other chunk, seed %i", (seed) => {
    const { bases, targets, sources } = plantRepeats(genome, cut, new Random(seed));
    const marker = formatBases(KEY_MARKER);
    const plants = Array.from({ length: cut.chunks }, (_, chunk) => {
      const from = chunk * cut.chunkLength;
      const start = from + formatBases(bases.subarray(from, from + cut.chunkLength)).indexOf(marker);
      const asked = Array.from(targets.subarray(start, start + MOTIF_LENGTH));
      const seen = bases.subarray(start, start + MOTIF_LENGTH);
      const whole = seen.map((letter, i) => (letter === MASKED_BASE ? asked[i]! : letter));
      return { seen: formatBases(seen), whole: formatBases(whole) };
    });
    expect(sources.size).toBe(cut.chunks / 2);
    expect(new Set([...sources.keys(), ...sources.values()]).size).toBe(cut.chunks);
    for (const [query, source] of sources) {
      expect(Math.abs(query - source)).toBeGreaterThan(1);
      expect(plants[query]!.seen).toContain("------");
      expect(plants[source]!.seen).toBe(plants[query]!.whole);
      // The key stands in no third chunk.
      const key = plants[source]!.whole.slice(marker.length, marker.length + 8);
      expect(plants.filter(({ whole }) => whole.startsWith(marker + key)).length).toBe(2);
    }
    expect(targets.filter((target) => target !== IGNORE_INDEX).length).toBe(6 * sources.size);
  });

  it("gives the same sequences again, others for other steps, seeds and purposes", () => {
    const samples = (seed: string): SampleSource =>
      new SampleSource(parseSettings(["--task", "planted", "--seed", seed]));
    const first = samples("3");
    const text = (sample: { bases: Uint8Array }): string => formatBases(sample.bases);
    expect(first.trainingBatch(4).map(text)).toEqual(samples("3").trainingBatch(4).map(text));
    const all = [
      ...first.trainingBatch(4),
      ...first.trainingBatch(5),
      ...samples("4").trainingBatch(4),
      first.heldOutSample(16),
    ].map(text);
    expect(new Set(all).size).toBe(all.length);
  });
});

describe("words", () => {
  it("hold what stands around a base, and nothing beyond the ends or the reach", () => {
    const { bases } = maskBases(genome, { start: 0, length: 60 }, new Random(0));
    const whole = tokenize(bases, 0, 60);
    expect(whole.length).toBe(60 * WORDS_PER_TOKEN);
    expect(Math.max(...whole)).toBeLessThan(WORD_VOCABULARY_SIZE);
    // A rank that makes only its own rows makes the same.
    expect(tokenize(bases, 20, 40)).toEqual(whole.slice(20 * WORDS_PER_TOKEN, 40 * WORDS_PER_TOKEN));
    const changed = bases.slice();
    changed[30] = (bases[30]! + 1) % 4;
    const differs = Array.from({ length: 60 }, (_, i) => i).filter((i) =>
      tokenize(changed, i, i + 1).some((word, j) => word !== whole[i * WORDS_PER_TOKEN + j]),
    );
    expect(differs).toEqual(Array.from({ length: 2 * CONTEXT_RADIUS + 1 }, (_, i) => 30 - CONTEXT_RADIUS + i));
  });
});
