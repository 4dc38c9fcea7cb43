import type { Settings } from "./settings.ts";

/** Query rows that float64 checks, and that the loss of `--backward` reads. */
const SAMPLED_ROWS = 128;

/** Rows spread evenly over the sequence; all of them when it is short. */
export function sampleRows(tokens: number): readonly number[] {
  const count = Math.min(SAMPLED_ROWS, tokens);
  return Array.from({ length: count }, (_, i) => Math.floor(((i + 0.5) * tokens) / count));
}

/** The gradient that the loss sends into `out` at one sampled row, [H,D]: numbers that every dtype holds exactly. */
export function cotangentAt({ seed, numHeads, dim }: Settings, row: number): Float32Array {
  const drawn = normals(seed * 8 + 7 + (row + 1) * 1_000_003, numHeads * dim);
  return Float32Array.from(drawn, (x) => Math.round(Math.max(-4, Math.min(4, x)) * 16) / 16);
}

/** dOut [H,S,D] at the given positions: zero but at the sampled rows. */
export function cotangent(settings: Settings, positions: Int32Array): Float32Array<ArrayBuffer> {
  const { numHeads, dim } = settings;
  const sampled = new Set(sampleRows(settings.tokens));
  const dOut = new Float32Array(numHeads * positions.length * dim);
  positions.forEach((position, row) => {
    if (!sampled.has(position)) return;
    const values = cotangentAt(settings, position);
    for (let head = 0; head < numHeads; head++) {
      dOut.set(values.subarray(head * dim, (head + 1) * dim), (head * positions.length + row) * dim);
    }
  });
  return dOut;
}

/** Standard normal numbers that depend on the seed alone: Box–Muller over the mulberry32 generator. */
export function normals(seed: number, count: number): Float64Array {
  const next = mulberry32(seed);
  const out = new Float64Array(count);
  for (let i = 0; i < count; i += 2) {
    const radius = Math.sqrt(-2 * Math.log(1 - next()));
    const angle = 2 * Math.PI * next();
    out[i] = radius * Math.cos(angle);
    if (i + 1 < count) out[i + 1] = radius * Math.sin(angle);
  }
  return out;
}

function mulberry32(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let z = Math.imul(state ^ (state >>> 15), state | 1);
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
    return ((z ^ (z >>> 14)) >>> 0) / 2 ** 32;
  };
}
