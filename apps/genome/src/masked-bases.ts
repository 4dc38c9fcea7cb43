import { type Bases, MASKED } from "./bases.ts";
import type { Random } from "./random.ts";
import { IGNORED, type Sample } from "./sample.ts";

/** Share of bases that are hidden. */
const HIDDEN = 0.15;

/** Where the genome is held out from training, in bases: a quarter, from the recombination genes to the replication genes. */
export const HELD_OUT = { start: 28_000, end: 40_192 } as const;

/** A stretch of the genome with some bases hidden; the genome goes round, as λ's own does inside its host. */
export function hideBases(genome: Bases, { start, length }: { start: number; length: number }, random: Random): Sample {
  const letters = new Uint8Array(length);
  const targets = new Float32Array(length).fill(IGNORED);
  for (let i = 0; i < length; i++) {
    const base = genome[(start + i) % genome.length]!;
    const hidden = random.uniform() < HIDDEN;
    letters[i] = hidden ? MASKED : base;
    if (hidden) targets[i] = base;
  }
  return { letters, targets };
}

/** A place for a stretch of training, clear of what is held out. */
export function trainingStart(genome: Bases, length: number, random: Random): number {
  const free = genome.length - (HELD_OUT.end - HELD_OUT.start) - length + 1;
  return (HELD_OUT.end + random.below(free)) % genome.length;
}
