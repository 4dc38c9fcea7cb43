import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";

/** Bases as numbers: A 0, C 1, G 2, T 3. */
export type Bases = Uint8Array;

/** Bacteriophage λ, NCBI accession NC_001416.1: 48 502 bases, complete. */
const LAMBDA: URL = new URL("../data/lambda_phage_NC_001416.1.fa.gz", import.meta.url);

/** Reads the genome that comes with this program. */
export function readGenome(): Bases {
  return parseFasta(gunzipSync(readFileSync(LAMBDA)).toString("latin1"));
}

/** The bases of a FASTA file of one record; throws on an unknown letter, naming its line. */
export function parseFasta(text: string): Bases {
  const lines = text.split(/\r?\n/);
  const bases = new Uint8Array(text.length);
  let length = 0;
  for (const [number, line] of lines.entries()) {
    if (line.startsWith(">") || line.startsWith(";")) continue;
    for (const letter of line.trim().toUpperCase()) {
      const base = "ACGT".indexOf(letter);
      if (base < 0) throw new Error(`genome, line ${number + 1}: expected A, C, G or T, received "${letter}"`);
      bases[length++] = base;
    }
  }
  if (length === 0) throw new Error("genome: the file holds no bases");
  return bases.slice(0, length);
}

/** Bases per token. */
export const TOKEN_LENGTH = 6;

/**
 * The token at a position: the six bases that begin there, as one number below 4⁶. The genome goes round, as λ's own
 * does inside its host, and so repeats when a sequence is longer.
 */
export function tokenAt(genome: Bases, position: number): number {
  let token = 0;
  for (let i = 0; i < TOKEN_LENGTH; i++) token = token * 4 + genome[(position + i) % genome.length]!;
  return token;
}
