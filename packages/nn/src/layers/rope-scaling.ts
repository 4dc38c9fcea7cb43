import { defineOptions, option, OptionError, type OptionsOf } from "@mosaic/core";

// Pair i of the D features of a head is rotated by base^(−2i/D) radians per position. These D/2 angles are the inverse
// frequencies. Formulas, option names and defaults are those of Hugging Face transformers 5 (modeling_rope_utils.py),
// in float64.

/** Parameters of the rotary embedding that is scaled. */
export interface RopeParameters {
  readonly headDim: number;
  readonly base: number;
  /** Length of the whole sequence over all ranks; undefined if unknown. */
  readonly sequenceLength: number | undefined;
}

/** The rotation and the scale of queries and keys. */
export interface RopeFrequencies {
  /** Angle of each pair at position 1 in radians, [D/2]. */
  readonly inverseFrequencies: Float64Array;
  /** Factor on queries and on keys; q·k is therefore scaled by its square. */
  readonly attentionFactor: number;
}

/** Extends a rotary embedding beyond the sequence lengths of its training. One of `ropeScaling`, or custom. */
export interface RopeScaling {
  readonly name: string;
  /** Whether the frequencies depend on the length of the whole sequence. */
  readonly dependsOnLength: boolean;
  compute(rope: RopeParameters): RopeFrequencies;
}

/** Returns the inverse frequencies of the paper, base^(−2i/D). */
export function unscaledFrequencies({ headDim, base }: Pick<RopeParameters, "headDim" | "base">): Float64Array {
  return Float64Array.from({ length: headDim / 2 }, (_, i) => base ** ((-2 * i) / headDim));
}

/** Creates a scaling that does not depend on the sequence length. */
function createScaling(
  name: string,
  compute: (rope: RopeParameters) => Float64Array,
  attentionFactor = 1,
): RopeScaling {
  return {
    name,
    dependsOnLength: false,
    compute: (rope) => ({ inverseFrequencies: compute(rope), attentionFactor }),
  };
}

/** Returns the base for which the lowest frequency is divided by `factor` and the highest remains 1 (bloc97 2023). */
function ntkBase({ base, headDim }: RopeParameters, factor: number): number {
  return base * factor ** (headDim / (headDim - 2));
}

export const linearScalingOptions = defineOptions("ropeScaling.linear", {
  /** Ratio of the extended sequence length to the original one. */
  factor: option.number({ min: 1 }),
});
/** Options of `ropeScaling.linear`. */
export type LinearScalingOptions = OptionsOf<typeof linearScalingOptions>;

/** Position interpolation (Chen et al. 2023): divides all frequencies by `factor`. */
function linear(options: LinearScalingOptions): RopeScaling {
  const { factor } = linearScalingOptions.parse(options);
  return createScaling("linear", (rope) => unscaledFrequencies(rope).map((each) => each / factor));
}

export const ntkScalingOptions = defineOptions("ropeScaling.ntk", {
  /** Ratio of the extended sequence length to the original one. */
  factor: option.number({ min: 1 }),
});
/** Options of `ropeScaling.ntk`. */
export type NtkScalingOptions = OptionsOf<typeof ntkScalingOptions>;

/**
 * NTK-aware scaling (bloc97 2023): increases the base, which divides the lowest frequency by `factor` and keeps the
 * highest.
 */
function ntk(options: NtkScalingOptions): RopeScaling {
  const { factor } = ntkScalingOptions.parse(options);
  return createScaling("ntk", (rope) => unscaledFrequencies({ headDim: rope.headDim, base: ntkBase(rope, factor) }));
}

export const dynamicNtkScalingOptions = defineOptions("ropeScaling.dynamicNtk", {
  /** Rate at which the base grows with the sequence length. */
  factor: option.number({ min: 1 }),
  /** Maximum sequence length in training, max_position_embeddings. */
  originalLength: option.integer({ min: 1 }),
});
/** Options of `ropeScaling.dynamicNtk`. */
export type DynamicNtkScalingOptions = OptionsOf<typeof dynamicNtkScalingOptions>;

/**
 * NTK-aware scaling by a factor that depends on the sequence length (emozilla 2023): 1 up to `originalLength` rows, and
 * factor · length / originalLength − (factor − 1) beyond. The length is that of the whole sequence, not of a shard.
 */
function dynamicNtk(options: DynamicNtkScalingOptions): RopeScaling {
  const { factor, originalLength } = dynamicNtkScalingOptions.parse(options);
  return {
    name: "dynamicNtk",
    dependsOnLength: true,
    compute(rope) {
      const length = Math.max(rope.sequenceLength ?? 0, originalLength);
      const base = ntkBase(rope, (factor * length) / originalLength - (factor - 1));
      return { inverseFrequencies: unscaledFrequencies({ headDim: rope.headDim, base }), attentionFactor: 1 };
    },
  };
}

export const yarnScalingOptions = defineOptions("ropeScaling.yarn", {
  /** Ratio of the extended sequence length to the original one. */
  factor: option.number({ min: 1 }),
  /** Maximum sequence length in training, original_max_position_embeddings. */
  originalLength: option.integer({ min: 1 }),
  /** Pairs with at least this many rotations within originalLength keep their frequency. Default 32. */
  betaFast: option.number({ above: 0, default: 32 }),
  /**
   * Pairs with at most this many rotations within originalLength have their frequency divided by the factor. Default 1.
   */
  betaSlow: option.number({ above: 0, default: 1 }),
  /** Factor on queries and keys. Default: 0.1 · ln(factor) + 1, or the value computed from mscale and mscaleAllDim. */
  attentionFactor: option.number({ above: 0, optional: true }),
  /**
   * With mscaleAllDim, sets the attention factor as in DeepSeek: (0.1 · mscale · ln(factor) + 1) / (0.1 · mscaleAllDim
   * · ln(factor) + 1). Default: not used.
   */
  mscale: option.number({ min: 0, optional: true }),
  /** See mscale. Default: not used. */
  mscaleAllDim: option.number({ min: 0, optional: true }),
  /**
   * Whether the ramp between the pairs of betaFast and betaSlow is extended to whole pairs; not so in gpt-oss. Default
   * true.
   */
  truncate: option.boolean({ default: true }),
});
/** Options of `ropeScaling.yarn`. */
export type YarnScalingOptions = OptionsOf<typeof yarnScalingOptions>;

/**
 * YaRN (Peng et al. 2023): pairs with high frequencies are unchanged, pairs with low frequencies are interpolated, and
 * those in between are blended by a linear ramp. Queries and keys are scaled by the attention factor.
 */
function yarn(options: YarnScalingOptions): RopeScaling {
  const parsed = yarnScalingOptions.parse(options);
  const { factor, originalLength, betaFast, betaSlow, truncate } = parsed;
  const compute = ({ headDim, base }: RopeParameters): Float64Array => {
    // The index, a real number, of the pair that makes `turns` rotations within the original length.
    const findPairIndex = (turns: number) =>
      (headDim * Math.log(originalLength / (turns * 2 * Math.PI))) / (2 * Math.log(base));
    const [fastPairIndex, slowPairIndex] = [findPairIndex(betaFast), findPairIndex(betaSlow)];
    const rampStart = Math.max(truncate ? Math.floor(fastPairIndex) : fastPairIndex, 0);
    const rampEnd = Math.min(truncate ? Math.ceil(slowPairIndex) : slowPairIndex, headDim - 1);
    const rampWidth = rampEnd === rampStart ? 0.001 : rampEnd - rampStart;
    return unscaledFrequencies({ headDim, base }).map((frequency, i) => {
      const interpolatedFraction = Math.min(Math.max((i - rampStart) / rampWidth, 0), 1);
      return (frequency / factor) * interpolatedFraction + frequency * (1 - interpolatedFraction);
    });
  };
  return createScaling("yarn", compute, yarnAttentionFactor(parsed));
}

function yarnAttentionFactor({
  factor,
  attentionFactor,
  mscale,
  mscaleAllDim,
}: Pick<YarnScalingOptions, "factor" | "attentionFactor" | "mscale" | "mscaleAllDim">): number {
  const computeMscale = (mscaleFactor: number) => (factor <= 1 ? 1 : 0.1 * mscaleFactor * Math.log(factor) + 1);
  if (attentionFactor !== undefined) return attentionFactor;
  return mscale && mscaleAllDim ? computeMscale(mscale) / computeMscale(mscaleAllDim) : computeMscale(1);
}

export const llama3ScalingOptions = defineOptions("ropeScaling.llama3", {
  /** Divisor of low frequencies. */
  factor: option.number({ min: 1 }),
  /** Maximum sequence length in training, original_max_position_embeddings. */
  originalLength: option.integer({ min: 1 }),
  /** Pairs with fewer rotations within originalLength have their frequency divided by the factor. Default 1. */
  lowFreqFactor: option.number({ above: 0, default: 1 }),
  /** Pairs with more rotations within originalLength keep their frequency. Must exceed lowFreqFactor. Default 4. */
  highFreqFactor: option.number({ above: 0, default: 4 }),
});
/** Options of `ropeScaling.llama3`. */
export type Llama3ScalingOptions = OptionsOf<typeof llama3ScalingOptions>;

/**
 * The scaling of Llama 3.1: divides low frequencies by `factor`, keeps high ones, and interpolates smoothly in between.
 */
function llama3(options: Llama3ScalingOptions): RopeScaling {
  const { factor, originalLength, lowFreqFactor, highFreqFactor } = llama3ScalingOptions.parse(options);
  if (highFreqFactor <= lowFreqFactor) {
    throw new OptionError({
      where: "ropeScaling.llama3",
      expected: "highFreqFactor > lowFreqFactor",
      received: `${highFreqFactor} and ${lowFreqFactor}`,
    });
  }
  return createScaling("llama3", (rope) =>
    unscaledFrequencies(rope).map((frequency) => {
      const turns = (originalLength * frequency) / (2 * Math.PI);
      const unscaledFraction = Math.min(Math.max((turns - lowFreqFactor) / (highFreqFactor - lowFreqFactor), 0), 1);
      return (1 - unscaledFraction) * (frequency / factor) + unscaledFraction * frequency;
    }),
  );
}

/**
 * Scalings of rotary embeddings, for `RotaryEmbedding`'s option `scaling`: `linear`, `ntk`, `dynamicNtk`, `yarn`,
 * `llama3`. The frequencies equal those of the functions with these names in Hugging Face transformers, up to float32
 * rounding.
 *
 * @example
 * ```ts
 * import { RotaryEmbedding, ropeScaling } from "@mosaic/nn";
 * const llama31 = ropeScaling.llama3({ factor: 8, originalLength: 8192 });
 * using rotary = new RotaryEmbedding(128, { base: 500_000, scaling: llama31 });
 * const { inverseFrequencies, attentionFactor } = rotary.frequencies();
 * [inverseFrequencies[0], attentionFactor]; // => [1, 1]
 * inverseFrequencies[63]!.toExponential(3); // => "3.069e-7"
 * ropeScaling.yarn({ factor: 4, originalLength: 32_768 }).compute({ headDim: 128, base: 1e6, sequenceLength: undefined }).attentionFactor.toFixed(4); // => "1.1386"
 * ```
 */
export const ropeScaling: {
  readonly linear: typeof linear;
  readonly ntk: typeof ntk;
  readonly dynamicNtk: typeof dynamicNtk;
  readonly yarn: typeof yarn;
  readonly llama3: typeof llama3;
} = { linear, ntk, dynamicNtk, yarn, llama3 };
