/** Returns a generator of uniform numbers in [0, 1): mulberry32 with a seed. */
export function createUniformGenerator(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let bits = Math.imul(state ^ (state >>> 15), 1 | state);
    bits = (bits + Math.imul(bits ^ (bits >>> 7), 61 | bits)) ^ bits;
    return ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
  };
}

type UniformGenerator = () => number;

const sampleNormal = (draw: UniformGenerator): number =>
  Math.sqrt(-2 * Math.log(1 - draw())) * Math.cos(2 * Math.PI * draw());
const createLogNormalSampler = (mean: number, std: number) => (draw: UniformGenerator) =>
  Math.exp(mean + std * sampleNormal(draw));
const createParetoSampler = (exponent: number, minimum: number) => (draw: UniformGenerator) =>
  minimum / (1 - draw()) ** (1 / exponent);

/** GPT-2 tokens per byte, over all of the Pile (arXiv 2101.00027, section 3.1). */
const TOKENS_PER_BYTE = 0.29335;
/** Standard deviation of the logarithm. It is our assumption, because the Pile's paper gives only means. */
const PILE_LOG_STD = 1.2;

/** Returns a log-normal sampler of lengths in tokens, from a mean in KiB. */
function createPileSampler(meanKib: number): (draw: UniformGenerator) => number {
  const mean = meanKib * 1024 * TOKENS_PER_BYTE;
  return createLogNormalSampler(Math.log(mean) - PILE_LOG_STD ** 2 / 2, PILE_LOG_STD);
}

const pileSource = (meanKib: number): string =>
  `mean of ${meanKib} KiB from table 1 of the Pile (arXiv 2101.00027), 0.29335 tokens per byte; assumed log deviation ${PILE_LOG_STD}`;
const MAGI_SOURCE = "parameters of our simulation of MagiAttention, which samples an unpublished histogram";
const OWN_SOURCE = "ours";

export interface LengthDistribution {
  readonly sample: (draw: UniformGenerator) => number;
  /** Source of the parameters. */
  readonly source: string;
}

/** Distributions of document lengths in tokens. */
export const distributions: Readonly<Record<string, LengthDistribution>> = {
  "log-normal 7.2, 1.6": { sample: createLogNormalSampler(7.2, 1.6), source: MAGI_SOURCE },
  "Pile-CC": { sample: createPileSampler(4.33), source: pileSource(4.33) },
  GitHub: { sample: createPileSampler(5.25), source: pileSource(5.25) },
  FreeLaw: { sample: createPileSampler(15.06), source: pileSource(15.06) },
  ArXiv: { sample: createPileSampler(46.61), source: pileSource(46.61) },
  Books3: { sample: createPileSampler(538.36), source: pileSource(538.36) },
  "log-normal 6, 1.4": { sample: createLogNormalSampler(6, 1.4), source: OWN_SOURCE },
  "log-normal 8.5, 1.2": { sample: createLogNormalSampler(8.5, 1.2), source: OWN_SOURCE },
  "Pareto 1.1 from 512": { sample: createParetoSampler(1.1, 512), source: OWN_SOURCE },
  "Pareto 1.5 from 1024": { sample: createParetoSampler(1.5, 1024), source: OWN_SOURCE },
  "uniform 64 to 16064": { sample: (draw) => 64 + draw() * 16_000, source: OWN_SOURCE },
  "exponential 4096": { sample: (draw) => -4096 * Math.log(1 - draw()), source: OWN_SOURCE },
  "equal 4096": { sample: () => 4096, source: OWN_SOURCE },
  "bimodal 1K, 64K": {
    sample: (draw) => (draw() < 0.9 ? 256 + draw() * 1024 : 32_768 + draw() * 65_536),
    source: OWN_SOURCE,
  },
  "mixed 0.7K, 36K": {
    sample: (draw) => (draw() < 0.97 ? createLogNormalSampler(6.5, 1)(draw) : createLogNormalSampler(10.5, 0.8)(draw)),
    source: OWN_SOURCE,
  },
};

/**
 * Draws lengths of documents that fill a sequence. Each has at least 64 rows, except the last, and at most a quarter of
 * the sequence, as in MagiAttention's benchmark.
 */
export function drawLengths(
  total: number,
  { sample: sampleLength }: LengthDistribution,
  draw: UniformGenerator,
): number[] {
  const lengths: number[] = [];
  for (let remainingTokens = total; remainingTokens > 0; ) {
    const length = Math.min(remainingTokens, Math.floor(total / 4), Math.max(64, Math.floor(sampleLength(draw))));
    lengths.push(length);
    remainingTokens -= length;
  }
  return lengths;
}
