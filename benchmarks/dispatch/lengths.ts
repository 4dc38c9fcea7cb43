/** Uniform in [0, 1): mulberry32, by seed. */
export function generator(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

type Draw = () => number;

const normal = (draw: Draw): number => Math.sqrt(-2 * Math.log(1 - draw())) * Math.cos(2 * Math.PI * draw());
const logNormal = (mean: number, deviation: number) => (draw: Draw) => Math.exp(mean + deviation * normal(draw));
const pareto = (exponent: number, least: number) => (draw: Draw) => least / (1 - draw()) ** (1 / exponent);

/** Lengths of documents: shapes that packed corpora have, from short web pages to books and repositories. Synthetic. */
export const distributions: Readonly<Record<string, (draw: Draw) => number>> = {
  "log-normal 7.2, 1.6": logNormal(7.2, 1.6),
  "log-normal 6, 1.4": logNormal(6, 1.4),
  "log-normal 8.5, 1.2": logNormal(8.5, 1.2),
  "Pareto 1.1 from 512": pareto(1.1, 512),
  "Pareto 1.5 from 1024": pareto(1.5, 1024),
  "uniform 64 to 16064": (draw) => 64 + draw() * 16_000,
  "exponential 4096": (draw) => -4096 * Math.log(1 - draw()),
  "equal 4096": () => 4096,
  "bimodal 1K, 64K": (draw) => (draw() < 0.9 ? 256 + draw() * 1024 : 32_768 + draw() * 65_536),
  "mixed 0.7K, 36K": (draw) => (draw() < 0.97 ? logNormal(6.5, 1)(draw) : logNormal(10.5, 0.8)(draw)),
};

/** Documents that fill a sequence: each at least 64 rows and at most a quarter of it. */
export function drawLengths(total: number, distribution: (draw: Draw) => number, draw: Draw): number[] {
  const lengths: number[] = [];
  for (let left = total; left > 0; ) {
    const length = Math.min(left, Math.floor(total / 4), Math.max(64, Math.floor(distribution(draw))));
    lengths.push(length);
    left -= length;
  }
  return lengths;
}
