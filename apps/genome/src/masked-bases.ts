import { type Bases, MASKED_BASE, parseBases } from "./genome.ts";
import type { Random } from "@mosaic/program";

/** Targets of positions that do not count. */
export const IGNORE_INDEX = -100;

/** One sequence: inputs and targets of a model. */
export interface Sample {
  /** Bases 0 to 3, `MASKED_BASE` where hidden [S]. */
  readonly bases: Uint8Array;
  /** The hidden bases, `IGNORE_INDEX` elsewhere [S]. */
  readonly targets: Float32Array;
}

/** A sequence that is cut into chunks, one of which explains what is hidden in another. */
export interface PlantedSample extends Sample {
  /** For each chunk with something hidden the chunk that holds the copy. */
  readonly sources: ReadonlyMap<number, number>;
}

/** Share of bases that are hidden. */
const MASK_RATE = 0.15;

/** Where the genome is held out from training, in bases: a quarter, from the recombination genes to the replication genes. */
export const HELD_OUT_RANGE = { start: 28_000, end: 40_192 } as const;

/** A stretch of the genome with some bases hidden; the genome is circular, as λ's own does inside its host. */
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

/** A place for a stretch of training, clear of what is held out. */
export function drawTrainingStart(genome: Bases, length: number, random: Random): number {
  const numStarts = genome.length - (HELD_OUT_RANGE.end - HELD_OUT_RANGE.start) - length + 1;
  return (HELD_OUT_RANGE.end + random.integer(numStarts)) % genome.length;
}

// What is planted in each chunk: marker, key, repeat, key again another one. The two chunks of a pair have the same keys and
// the same repeat, and in one of them the repeat is hidden. Bases of keys and repeats are drawn evenly, so that nothing but
// the other chunk holds them.

/** Stands before every key: eight bases that λ itself never has in this order. */
export const KEY_MARKER: Uint8Array = parseBases("CCTAGGCT");
const KEY_LENGTH = 8;
const REPEAT_LENGTH = 6;
/** Bases of all that is planted in a chunk. */
export const MOTIF_LENGTH: number = KEY_MARKER.length + KEY_LENGTH + REPEAT_LENGTH + KEY_LENGTH;
/** Chunks of a pair are at least so many apart. */
const MIN_PAIR_DISTANCE = 2;

/** How a sequence is cut. */
interface Chunking {
  readonly chunks: number;
  readonly chunkLength: number;
}

/** A stretch of the genome, in each of whose chunks something is planted; every chunk is one of a pair. */
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

/** A plant whose first key no other of the sequence has. */
function drawPlantedMotif(random: Random, usedKeys: Set<string>): Uint8Array {
  const bases = Uint8Array.from({ length: MOTIF_LENGTH - KEY_MARKER.length }, () => random.integer(4));
  const key = bases.slice(0, KEY_LENGTH).join("");
  if (usedKeys.has(key)) return drawPlantedMotif(random, usedKeys);
  usedKeys.add(key);
  return Uint8Array.from([...KEY_MARKER, ...bases]);
}

/** All chunks in pairs (query, source), neighbours never together. */
function drawPairs(chunks: number, random: Random): readonly (readonly [number, number])[] {
  for (;;) {
    const order = random.permutation(chunks);
    const pairs = Array.from({ length: chunks / 2 }, (_, i) => [order[2 * i]!, order[2 * i + 1]!] as const);
    if (pairs.every(([a, b]) => Math.abs(a - b) >= MIN_PAIR_DISTANCE)) return pairs;
  }
}
