import { defineOptions, option, OptionError, type OptionsOf } from "@mosaic/core";

// D features of a head, of which pair i turns by base^(−2i/D) at each position: D/2 inverse frequencies, as the field calls them.
// Formulas, option names and defaults are those of Hugging Face transformers 5 (modeling_rope_utils.py), in float64.

/** What a scaling changes. */
export interface RopeParameters {
  readonly headDim: number;
  readonly base: number;
  /** Rows of the whole sequence, wherever in the mesh they lie; undefined where it is not known. */
  readonly sequenceLength: number | undefined;
}

/** What queries and keys are turned by. */
export interface RopeFrequencies {
  /** Of each pair, [D/2]: its angle in radians at position 1. */
  readonly inverseFrequencies: Float64Array;
  /** Factor on queries and on keys, and so squared on q·k. */
  readonly attentionFactor: number;
}

/** How a rotary embedding reaches beyond the lengths that it was trained with: one of `ropeScaling`, or your own. */
export interface RopeScaling {
  readonly name: string;
  /** Whether frequencies follow from the length of the whole sequence. */
  readonly dependsOnLength: boolean;
  compute(rope: RopeParameters): RopeFrequencies;
}

/** Those of the paper: base^(−2i/D). */
export function unscaledFrequencies({ headDim, base }: Pick<RopeParameters, "headDim" | "base">): Float64Array {
  return Float64Array.from({ length: headDim / 2 }, (_, i) => base ** ((-2 * i) / headDim));
}

/** A scaling that no length changes. */
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

/** The base whose lowest frequency is the old one divided by `factor`, and whose highest stays 1 (bloc97 2023). */
function ntkBase({ base, headDim }: RopeParameters, factor: number): number {
  return base * factor ** (headDim / (headDim - 2));
}

export const linearScalingOptions = defineOptions("ropeScaling.linear", {
  /** How many times as long sequences become. */
  factor: option.number({ min: 1 }),
});
/** What `ropeScaling.linear` takes. */
export type LinearScalingOptions = OptionsOf<typeof linearScalingOptions>;

/** Position interpolation (Chen et al. 2023): all frequencies divided by `factor`. */
function linear(options: LinearScalingOptions): RopeScaling {
  const { factor } = linearScalingOptions.parse(options);
  return createScaling("linear", (rope) => unscaledFrequencies(rope).map((each) => each / factor));
}

export const ntkScalingOptions = defineOptions("ropeScaling.ntk", {
  /** How many times as long sequences become. */
  factor: option.number({ min: 1 }),
});
/** What `ropeScaling.ntk` takes. */
export type NtkScalingOptions = OptionsOf<typeof ntkScalingOptions>;

/** NTK-aware scaling (bloc97 2023): a larger base, which divides the lowest frequency by `factor` and leaves the highest. */
function ntk(options: NtkScalingOptions): RopeScaling {
  const { factor } = ntkScalingOptions.parse(options);
  return createScaling("ntk", (rope) => unscaledFrequencies({ headDim: rope.headDim, base: ntkBase(rope, factor) }));
}

export const dynamicNtkScalingOptions = defineOptions("ropeScaling.dynamicNtk", {
  /** How fast the base grows with the sequence. */
  factor: option.number({ min: 1 }),
  /** The longest sequence of the training, max_position_embeddings. */
  originalLength: option.integer({ min: 1 }),
});
/** What `ropeScaling.dynamicNtk` takes. */
export type DynamicNtkScalingOptions = OptionsOf<typeof dynamicNtkScalingOptions>;

/**
 * NTK-aware scaling by what the sequence needs (emozilla 2023): nothing up to `originalLength` rows, beyond that
 * factor · length / originalLength − (factor − 1). The length is that of the whole sequence, not of a shard.
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
  /** How many times as long sequences become. */
  factor: option.number({ min: 1 }),
  /** The longest sequence of the training, original_max_position_embeddings. */
  originalLength: option.integer({ min: 1 }),
  /** Pairs that turn at least as often within originalLength keep their frequency. Default 32. */
  betaFast: option.number({ above: 0, default: 32 }),
  /** Pairs that turn at most as often have theirs divided by the factor. Default 1. */
  betaSlow: option.number({ above: 0, default: 1 }),
  /** Factor on queries and keys. Default: 0.1 · ln(factor) + 1, or what mscale and mscaleAllDim make of it. */
  attentionFactor: option.number({ above: 0, optional: true }),
  /** With mscaleAllDim, as in DeepSeek: (0.1 · mscale · ln(factor) + 1) / (0.1 · mscaleAllDim · ln(factor) + 1). Default: not used. */
  mscale: option.number({ min: 0, optional: true }),
  /** See mscale. Default: not used. */
  mscaleAllDim: option.number({ min: 0, optional: true }),
  /** Whether the ramp between the two begins and ends at whole pairs; gpt-oss's does not. Default true. */
  truncate: option.boolean({ default: true }),
});
/** What `ropeScaling.yarn` takes. */
export type YarnScalingOptions = OptionsOf<typeof yarnScalingOptions>;

/**
 * YaRN (Peng et al. 2023): fast pairs stay as they are, slow ones are interpolated, those between get a mixture by a linear
 * ramp; queries and keys are scaled by the attention factor.
 */
function yarn(options: YarnScalingOptions): RopeScaling {
  const parsed = yarnScalingOptions.parse(options);
  const { factor, originalLength, betaFast, betaSlow, truncate } = parsed;
  const compute = ({ headDim, base }: RopeParameters): Float64Array => {
    // The pair that turns so often within the original length, a real number.
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
  /** What low frequencies are divided by. */
  factor: option.number({ min: 1 }),
  /** The longest sequence of the training, original_max_position_embeddings. */
  originalLength: option.integer({ min: 1 }),
  /** Pairs that turn less often within originalLength are divided by the factor. Default 1. */
  lowFreqFactor: option.number({ above: 0, default: 1 }),
  /** Pairs that turn more often stay as they are. More than lowFreqFactor. Default 4. */
  highFreqFactor: option.number({ above: 0, default: 4 }),
});
/** What `ropeScaling.llama3` takes. */
export type Llama3ScalingOptions = OptionsOf<typeof llama3ScalingOptions>;

/** That of Llama 3.1: low frequencies divided by `factor`, high ones as they are, a smooth mixture between. */
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
 * Scalings of rotary embeddings, for `RotaryEmbedding`'s option `scaling`: `linear`, `ntk`, `dynamicNtk`, `yarn`, `llama3`. The
 * frequencies are those of Hugging Face transformers' functions of these names, to their float32 rounding.
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
