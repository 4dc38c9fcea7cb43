import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import { randomNormals } from "./reference.ts";

/** Bases as numbers: A 0, C 1, G 2, T 3. */
type Bases = Uint8Array;

/** Bacteriophage λ, NCBI accession NC_001416.1: 48 502 bases, complete. */
const LAMBDA_PATH: URL = new URL("../data/lambda_phage_NC_001416.1.fa.gz", import.meta.url);

/** Reads the genome that comes with this program. */
export function readGenome(): Bases {
  return parseFasta(gunzipSync(readFileSync(LAMBDA_PATH)).toString("latin1"));
}

/** Parses the bases of a FASTA file with one record. For an unknown letter, throws an error that names its line. */
export function parseFasta(text: string): Bases {
  const lines = text.split(/\r?\n/);
  const bases = new Uint8Array(text.length);
  let length = 0;
  for (const [lineIndex, line] of lines.entries()) {
    if (line.startsWith(">") || line.startsWith(";")) continue;
    for (const letter of line.trim().toUpperCase()) {
      const base = "ACGT".indexOf(letter);
      if (base < 0) throw new Error(`genome, line ${lineIndex + 1}: expected A, C, G or T, received "${letter}"`);
      bases[length++] = base;
    }
  }
  if (length === 0) throw new Error("genome: the file contains no bases");
  return bases.slice(0, length);
}

/** Bases per token. */
const TOKEN_LENGTH = 6;

/**
 * Returns the token at a position: the six bases from there on, as one number below 4⁶. The genome is treated as
 * circular, which λ's is inside its host, so a longer sequence repeats it.
 */
export function tokenAtPosition(genome: Bases, position: number): number {
  let token = 0;
  for (let i = 0; i < TOKEN_LENGTH; i++) token = token * 4 + genome[(position + i) % genome.length]!;
  return token;
}

// Shapes: H heads, S positions, D size of a head, E size of an embedding, V = 4⁶ tokens.

/** Queries, keys and values of some positions, each [H,S,D], row-major. */
interface Projections {
  readonly q: Float32Array<ArrayBuffer>;
  readonly k: Float32Array<ArrayBuffer>;
  readonly v: Float32Array<ArrayBuffer>;
}

interface EmbedOptions {
  readonly numHeads: number;
  readonly headDim: number;
  readonly seed: number;
}

const EMBED_DIM = 64;
/** Correlation of queries and keys of one token. With 0, attention is nearly uniform; with 1, it is a lookup. */
const QK_CORRELATION = 0.8;
/** Standard deviation of the elements of q and k; sharpens the softmax. */
const QK_STD = 0.9;

/**
 * Computes queries, keys and values from bases. The values at a position are the same on every rank.
 *
 * A token's embedding is the sum of its six bases' seeded random vectors, so that similar tokens are close together.
 * Seeded projections compute q, k and v from it. Because they are linear, they are applied only once to each token that
 * occurs. Positions are encoded in q and k as rotations (RoFormer, Su et al. 2021), which need the global positions of
 * a shard.
 */
export class Embedder {
  readonly #genome: Bases;
  readonly #options: EmbedOptions;
  readonly #vocabulary: Vocabulary;

  constructor(genome: Bases, options: EmbedOptions) {
    this.#genome = genome;
    this.#options = options;
    this.#vocabulary = new Vocabulary(options);
  }

  /** Returns q, k and v at the given global positions. */
  projectPositions(positions: Int32Array): Projections {
    const { numHeads, headDim } = this.#options;
    const createArray = (): Float32Array<ArrayBuffer> => new Float32Array(numHeads * positions.length * headDim);
    const result = { q: createArray(), k: createArray(), v: createArray() };
    const rotation = new Float64Array(headDim);
    positions.forEach((position, row) => {
      const projections = this.#vocabulary.project(tokenAtPosition(this.#genome, position));
      computeRotation(position, rotation);
      for (let head = 0; head < numHeads; head++) {
        const headStart = head * headDim;
        const outOffset = (head * positions.length + row) * headDim;
        rotate(result.q, outOffset, projections.q, headStart, rotation);
        rotate(result.k, outOffset, projections.k, headStart, rotation);
        for (let d = 0; d < headDim; d++) result.v[outOffset + d] = projections.v[headStart + d]!;
      }
    });
    return result;
  }
}

/** Computes the cosine and sine of each pair's angle at a position. */
function computeRotation(position: number, rotation: Float64Array): void {
  for (let i = 0; i < rotation.length; i += 2) {
    const angle = position * 10_000 ** (-i / rotation.length);
    rotation[i] = Math.cos(angle);
    rotation[i + 1] = Math.sin(angle);
  }
}

function rotate(out: Float32Array, outOffset: number, x: Float32Array, xOffset: number, rotation: Float64Array): void {
  for (let i = 0; i < rotation.length; i += 2) {
    const [a, b] = [x[xOffset + i]!, x[xOffset + i + 1]!];
    out[outOffset + i] = a * rotation[i]! - b * rotation[i + 1]!;
    out[outOffset + i + 1] = a * rotation[i + 1]! + b * rotation[i]!;
  }
}

/** Projections of tokens. Each is computed on first use, because a shard contains few of the 4⁶ tokens. */
class Vocabulary {
  readonly #bases: Float64Array;
  readonly #weights: { readonly q: Float64Array; readonly k: Float64Array; readonly v: Float64Array };
  readonly #projectionCache = new Map<number, Projections>();

  constructor({ numHeads, headDim, seed }: EmbedOptions) {
    const width = numHeads * headDim;
    const drawNormals = (stream: number, count: number): Float64Array => randomNormals(seed * 8 + stream, count);
    this.#bases = drawNormals(0, TOKEN_LENGTH * 4 * EMBED_DIM);
    const [wq, independentWk, wv] = [1, 2, 3].map((stream) => drawNormals(stream, EMBED_DIM * width)) as [
      Float64Array,
      Float64Array,
      Float64Array,
    ];
    const wk = wq.map((w, i) => QK_CORRELATION * w + Math.sqrt(1 - QK_CORRELATION ** 2) * independentWk[i]!);
    this.#weights = { q: wq, k: wk, v: wv };
  }

  /** Returns q, k and v of a token, each [H,D]. */
  project(token: number): Projections {
    const cachedProjections = this.#projectionCache.get(token);
    if (cachedProjections) return cachedProjections;
    const embedding = embed(token, this.#bases);
    const { q, k, v } = this.#weights;
    const projections = {
      q: project(embedding, q, QK_STD),
      k: project(embedding, k, QK_STD),
      v: project(embedding, v, 1),
    };
    this.#projectionCache.set(token, projections);
    return projections;
  }
}

/** Returns the embedding [E] of a token: the sum of six vectors, one for each place and base, with unit variance. */
function embed(token: number, baseEmbeddings: Float64Array): Float64Array {
  const out = new Float64Array(EMBED_DIM);
  for (let letterIndex = 0; letterIndex < TOKEN_LENGTH; letterIndex++) {
    const base = (token >> (2 * (TOKEN_LENGTH - 1 - letterIndex))) & 3;
    const vectorOffset = (letterIndex * 4 + base) * EMBED_DIM;
    for (let e = 0; e < EMBED_DIM; e++) out[e]! += baseEmbeddings[vectorOffset + e]! / Math.sqrt(TOKEN_LENGTH);
  }
  return out;
}

/** Computes x [E] · w [E,H·D] · gain/√E, rounded once. */
function project(x: Float64Array, w: Float64Array, gain: number): Float32Array<ArrayBuffer> {
  const width = w.length / EMBED_DIM;
  const projection = new Float64Array(width);
  for (let e = 0; e < EMBED_DIM; e++) {
    const factor = (x[e]! * gain) / Math.sqrt(EMBED_DIM);
    for (let i = 0; i < width; i++) projection[i]! += factor * w[e * width + i]!;
  }
  return Float32Array.from(projection);
}
