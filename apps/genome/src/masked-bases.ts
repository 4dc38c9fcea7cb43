import { type Bases, MASKED_BASE, parseBases } from "./genome.ts";
import type { Random } from "@mosaic/program";

/** Target of positions that are excluded from the loss. */
export const IGNORE_INDEX = -100;

/** Inputs and targets of a model for one sequence. */
export interface Sample {
  /** Bases 0 to 3, or `MASKED_BASE` if masked [S]. */
  readonly bases: Uint8Array;
  /** The masked bases, and `IGNORE_INDEX` elsewhere [S]. */
  readonly targets: Float32Array;
}

/** A sequence of chunks in pairs, one of which contains a copy of the bases that are masked in the other. */
export interface PlantedSample extends Sample {
  /** For each chunk with masked bases, the chunk that contains the copy. */
  readonly sources: ReadonlyMap<number, number>;
}

/** Share of bases that are masked. */
const MASK_RATE = 0.15;

/** Range of bases that is held out from training: a quarter, from the recombination genes to the replication genes. */
export const HELD_OUT_RANGE = { start: 28_000, end: 40_192 } as const;

/**
 * Returns a range of the genome with some bases masked. The genome is treated as circular, as λ's is inside its host.
 */
export function maskBases(genome: Bases, { start, length }: { start: number; length: number }, random: Random): Sample {
  const bases = new Uint8Array(length);
  const targets = new Float32Array(length).fill(IGNORE_INDEX);
  for (let i = 0; i < length; i++) {
    const base = genome[(start + i) % genome.length]!;
    const isMasked = random.uniform() < MASK_RATE;
    bases[i] = isMasked ? MASKED_BASE : base;
    if (isMasked) targets[i] = base;
  }
  return { bases, targets };
}

/** Returns a random start of a training sequence that does not overlap the held-out range. */
export function drawTrainingStart(genome: Bases, length: number, random: Random): number {
  const numStarts = genome.length - (HELD_OUT_RANGE.end - HELD_OUT_RANGE.start) - length + 1;
  return (HELD_OUT_RANGE.end + random.integer(numStarts)) % genome.length;
}

// The motif that is planted in each chunk consists of a marker, a key, a repeat and a second key. The two chunks of a
// pair have the same keys and the same repeat, and in one of them the repeat is masked. Bases of keys and repeats are
// drawn uniformly, so that only the other chunk reveals them.

/** Marker before every first key: eight bases that do not occur in λ in this order. */
export const KEY_MARKER: Uint8Array = parseBases("CCTAGGCT");
const KEY_LENGTH = 8;
const REPEAT_LENGTH = 6;
/** Number of bases of the motif planted in a chunk. */
export const MOTIF_LENGTH: number = KEY_MARKER.length + KEY_LENGTH + REPEAT_LENGTH + KEY_LENGTH;
/** Minimum distance between the chunks of a pair, in chunks. */
const MIN_PAIR_DISTANCE = 2;

/** Division of a sequence into chunks. */
interface Chunking {
  readonly chunks: number;
  readonly chunkLength: number;
}

/** Returns a range of the genome with a motif planted in each chunk. Every chunk belongs to a pair. */
export function plantRepeats(genome: Bases, { chunks, chunkLength }: Chunking, random: Random): PlantedSample {
  const length = chunks * chunkLength;
  const genomeStart = random.integer(genome.length);
  const bases = Uint8Array.from({ length }, (_, i) => genome[(genomeStart + i) % genome.length]!);
  const targets = new Float32Array(length).fill(IGNORE_INDEX);
  const sources = new Map<number, number>();
  const usedKeys = new Set<string>();
  for (const [query, source] of drawPairs(chunks, random)) {
    const motif = drawPlantedMotif(random, usedKeys);
    for (const chunk of [query, source]) {
      const start = chunk * chunkLength + random.integer(chunkLength - MOTIF_LENGTH + 1);
      bases.set(motif, start);
      if (chunk === query) maskRepeat(bases, targets, start + KEY_MARKER.length + KEY_LENGTH);
    }
    sources.set(query, source);
  }
  return { bases, targets, sources };
}

function maskRepeat(bases: Uint8Array, targets: Float32Array, start: number): void {
  for (let i = start; i < start + REPEAT_LENGTH; i++) {
    targets[i] = bases[i]!;
    bases[i] = MASKED_BASE;
  }
}

/** Returns a random motif whose first key occurs in no other motif of the sequence. */
function drawPlantedMotif(random: Random, usedKeys: Set<string>): Uint8Array {
  const bases = Uint8Array.from({ length: MOTIF_LENGTH - KEY_MARKER.length }, () => random.integer(4));
  const key = bases.slice(0, KEY_LENGTH).join("");
  if (usedKeys.has(key)) return drawPlantedMotif(random, usedKeys);
  usedKeys.add(key);
  return Uint8Array.from([...KEY_MARKER, ...bases]);
}

/** Returns all chunks in random pairs (query, source). Adjacent chunks are never paired. */
function drawPairs(chunks: number, random: Random): readonly (readonly [number, number])[] {
  for (;;) {
    const order = random.permutation(chunks);
    const pairs = Array.from({ length: chunks / 2 }, (_, i) => [order[2 * i]!, order[2 * i + 1]!] as const);
    if (pairs.every(([a, b]) => Math.abs(a - b) >= MIN_PAIR_DISTANCE)) return pairs;
  }
}
