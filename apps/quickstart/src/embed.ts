import { type Bases, tokenAt, WORD } from "./genome.ts";
import { normals } from "./random.ts";

// Shapes: H heads, S positions, D size of a head, E size of an embedding, V = 4⁶ tokens.

/** Queries, keys and values of some positions, each [H,S,D], row-major. */
export interface Projected {
  readonly q: Float32Array<ArrayBuffer>;
  readonly k: Float32Array<ArrayBuffer>;
  readonly v: Float32Array<ArrayBuffer>;
}

export interface EmbedOptions {
  readonly heads: number;
  readonly dim: number;
  readonly seed: number;
}

const EMBED = 64;
/** How alike queries and keys of one token are: with 0 attention is near uniform, with 1 it is a look-up. */
const LIKENESS = 0.8;
/** Standard deviation of the elements of q and k; sharpens the softmax. */
const GAIN = 0.9;

/**
 * Turns bases into queries, keys and values, the same numbers for a position wherever it is computed.
 *
 * A token's embedding is the sum of its six bases' seeded random vectors, so similar tokens lie close together. Seeded
 * projections make q, k and v of it; as they are linear they are applied once to each of the 4⁶ tokens. Position
 * enters q and k as rotations (RoFormer, Su et al. 2021), which need the global positions that a shard carries.
 */
export class Embedder {
  readonly #genome: Bases;
  readonly #options: EmbedOptions;
  readonly #tables: Projected;

  constructor(genome: Bases, options: EmbedOptions) {
    this.#genome = genome;
    this.#options = options;
    this.#tables = projectVocabulary(options);
  }

  /** q, k and v at the given global positions. */
  at(positions: Int32Array): Projected {
    const { heads, dim } = this.#options;
    const make = (): Float32Array<ArrayBuffer> => new Float32Array(heads * positions.length * dim);
    const result = { q: make(), k: make(), v: make() };
    const turn = new Float64Array(dim);
    positions.forEach((position, row) => {
      const token = tokenAt(this.#genome, position);
      rotationOf(position, turn);
      for (let head = 0; head < heads; head++) {
        const from = (token * heads + head) * dim;
        const to = (head * positions.length + row) * dim;
        rotate(result.q, to, this.#tables.q, from, turn);
        rotate(result.k, to, this.#tables.k, from, turn);
        for (let d = 0; d < dim; d++) result.v[to + d] = this.#tables.v[from + d]!;
      }
    });
    return result;
  }
}

/** Cosine and sine of each pair's angle at a position. */
function rotationOf(position: number, turn: Float64Array): void {
  for (let i = 0; i < turn.length; i += 2) {
    const angle = position * 10_000 ** (-i / turn.length);
    turn[i] = Math.cos(angle);
    turn[i + 1] = Math.sin(angle);
  }
}

function rotate(out: Float32Array, to: number, x: Float32Array, from: number, turn: Float64Array): void {
  for (let i = 0; i < turn.length; i += 2) {
    const [a, b] = [x[from + i]!, x[from + i + 1]!];
    out[to + i] = a * turn[i]! - b * turn[i + 1]!;
    out[to + i + 1] = a * turn[i + 1]! + b * turn[i]!;
  }
}

/** The projections of every token, each [V,H,D]. */
function projectVocabulary({ heads, dim, seed }: EmbedOptions): Projected {
  const width = heads * dim;
  const draw = (stream: number, count: number): Float64Array => normals(seed * 8 + stream, count);
  const embedding = embedVocabulary(draw(0, WORD * 4 * EMBED));
  const [wq, own, wv] = [1, 2, 3].map((stream) => draw(stream, EMBED * width)) as [
    Float64Array,
    Float64Array,
    Float64Array,
  ];
  const wk = wq.map((w, i) => LIKENESS * w + Math.sqrt(1 - LIKENESS ** 2) * own[i]!);
  return { q: project(embedding, wq, GAIN), k: project(embedding, wk, GAIN), v: project(embedding, wv, 1) };
}

/** [V,E]: the sum of six vectors, one for each place and base, with unit variance. */
function embedVocabulary(vectors: Float64Array): Float64Array {
  const vocabulary = 4 ** WORD;
  const out = new Float64Array(vocabulary * EMBED);
  for (let token = 0; token < vocabulary; token++) {
    for (let place = 0; place < WORD; place++) {
      const base = (token >> (2 * (WORD - 1 - place))) & 3;
      const from = (place * 4 + base) * EMBED;
      for (let e = 0; e < EMBED; e++) out[token * EMBED + e]! += vectors[from + e]! / Math.sqrt(WORD);
    }
  }
  return out;
}

/** x [V,E] · w [E,H·D] · gain/√E, rounded once. */
function project(x: Float64Array, w: Float64Array, gain: number): Float32Array<ArrayBuffer> {
  const rows = x.length / EMBED;
  const width = w.length / EMBED;
  const out = new Float32Array(rows * width);
  const sum = new Float64Array(width);
  for (let row = 0; row < rows; row++) {
    sum.fill(0);
    for (let e = 0; e < EMBED; e++) {
      const factor = (x[row * EMBED + e]! * gain) / Math.sqrt(EMBED);
      for (let i = 0; i < width; i++) sum[i]! += factor * w[e * width + i]!;
    }
    out.set(sum, row * width);
  }
  return out;
}
