import { formatValue } from "@mosaic/core";
import { FileError } from "@mosaic/nn";
import type { Fields, Json } from "./fields.ts";
import type { LayerType } from "./rope.ts";

// What model_type determines: the fields of a config.json and their defaults, as in the configuration classes of
// transformers 5.

interface Biases {
  readonly qkvBias: boolean;
  readonly outBias: boolean;
  readonly mlpBias: boolean;
}

export interface Architecture {
  readonly activationField: "hidden_act" | "hidden_activation";
  readonly defaults: {
    readonly maxLength: number;
    readonly isTied: boolean;
    /** Default of eos_token_id. */
    readonly eosTokenIds: readonly number[];
  };
  /** Default of head_dim; hiddenSize / numHeads if absent. */
  readonly headDim?: number;
  /** Default of num_key_value_heads; numHeads if absent. The value null of the field also means numHeads. */
  readonly numKvHeads?: number;
  readonly hasHeadNorms: boolean;
  /**
   * Features of Gemma: norms after attention and feed-forward layer, norm weights with an offset of 1, scaled
   * embeddings.
   */
  readonly hasPostNorms: boolean;
  /** Whether scores and logits have a softcap by default. */
  readonly hasSoftcaps: boolean;
  readonly rope: {
    readonly bases: Readonly<Record<LayerType, { readonly field: string; readonly fallback: number }>>;
    readonly isPerLayerType: boolean;
  };
  biases(fields: Fields): Biases;
  layerTypes(fields: Fields, numLayers: number): readonly LayerType[];
}

const createNoBiases = (): Biases => ({ qkvBias: false, outBias: false, mlpBias: false });

/** attention_bias applies to all four projections. */
function parseAttentionBiases(fields: Fields): Biases {
  const bias = fields.boolean("attention_bias", false);
  return { qkvBias: bias, outBias: bias, mlpBias: false };
}

const sharedBaseRope = {
  bases: {
    full_attention: { field: "rope_theta", fallback: 10_000 },
    sliding_attention: { field: "rope_theta", fallback: 10_000 },
  },
  isPerLayerType: false,
};

const repeatLayerType = (type: LayerType, count: number): LayerType[] => Array.from({ length: count }, () => type);

/** Returns layer_types, or the types that older fields determine for each layer. */
function parseLayerTypes(
  fields: Fields,
  numLayers: number,
  getLayerType: (layer: number) => LayerType,
): readonly LayerType[] {
  const layerTypes = fields.strings("layer_types", null);
  if (!layerTypes) return repeatLayerType("full_attention", numLayers).map((_, layer) => getLayerType(layer));
  const isLayerType = (type: string): type is LayerType => type === "full_attention" || type === "sliding_attention";
  if (layerTypes.length === numLayers && layerTypes.every(isLayerType)) return layerTypes;
  const expected = `full_attention or sliding_attention for each of ${numLayers} layers`;
  throw fields.error("layer_types", expected, "layers of other types are not supported");
}

/** Returns the layer types of Qwen 2 and 3: sliding from layer max_window_layers on, if use_sliding_window is set. */
function parseQwenLayerTypes(fields: Fields, numLayers: number): readonly LayerType[] {
  const usesSlidingWindow = fields.boolean("use_sliding_window", false) && !fields.isNull("sliding_window");
  const firstSlidingLayer = fields.count("max_window_layers", 28);
  const layerTypes = parseLayerTypes(fields, numLayers, (layer) =>
    layer >= firstSlidingLayer ? "sliding_attention" : "full_attention",
  );
  return usesSlidingWindow ? layerTypes : repeatLayerType("full_attention", numLayers);
}

const llama: Architecture = {
  activationField: "hidden_act",
  defaults: { maxLength: 2048, isTied: false, eosTokenIds: [2] },
  hasHeadNorms: false,
  hasPostNorms: false,
  hasSoftcaps: false,
  rope: sharedBaseRope,
  biases: (fields) => ({ ...parseAttentionBiases(fields), mlpBias: fields.boolean("mlp_bias", false) }),
  layerTypes: (_, numLayers) => repeatLayerType("full_attention", numLayers),
};

const mistral: Architecture = {
  ...llama,
  defaults: { maxLength: 131_072, isTied: false, eosTokenIds: [2] },
  numKvHeads: 8,
  biases: createNoBiases,
  layerTypes: (fields, numLayers) =>
    repeatLayerType(fields.isNull("sliding_window") ? "full_attention" : "sliding_attention", numLayers),
};

const qwen2: Architecture = {
  ...llama,
  defaults: { maxLength: 32_768, isTied: false, eosTokenIds: [] },
  numKvHeads: 32,
  biases: () => ({ qkvBias: true, outBias: false, mlpBias: false }),
  layerTypes: parseQwenLayerTypes,
};

const qwen3: Architecture = { ...qwen2, headDim: 128, hasHeadNorms: true, biases: parseAttentionBiases };

const gemma2: Architecture = {
  activationField: "hidden_activation",
  defaults: { maxLength: 8192, isTied: true, eosTokenIds: [1] },
  headDim: 256,
  numKvHeads: 4,
  hasHeadNorms: false,
  hasPostNorms: true,
  hasSoftcaps: true,
  rope: sharedBaseRope,
  biases: parseAttentionBiases,
  layerTypes: (fields, numLayers) =>
    parseLayerTypes(fields, numLayers, (layer) => (layer % 2 === 0 ? "sliding_attention" : "full_attention")),
};

const gemma3: Architecture = {
  ...gemma2,
  defaults: { maxLength: 131_072, isTied: true, eosTokenIds: [1] },
  hasHeadNorms: true,
  hasSoftcaps: false,
  rope: {
    bases: {
      full_attention: { field: "rope_theta", fallback: 1_000_000 },
      sliding_attention: { field: "rope_local_base_freq", fallback: 10_000 },
    },
    isPerLayerType: true,
  },
  layerTypes(fields, numLayers) {
    const fullLayerInterval = fields.size("sliding_window_pattern", 6);
    return parseLayerTypes(fields, numLayers, (layer) =>
      (layer + 1) % fullLayerInterval === 0 ? "full_attention" : "sliding_attention",
    );
  },
};

/** The architectures by model_type. */
const architectures: Readonly<Record<string, Architecture>> = {
  llama,
  mistral,
  qwen2,
  qwen3,
  gemma2,
  gemma3_text: gemma3,
};

/** Returns the architecture of a config. Throws a FileError if it is not supported. */
export function findArchitecture(path: string, json: Json): Architecture {
  const type = json.model_type;
  const architecture = typeof type === "string" && Object.hasOwn(architectures, type) ? architectures[type] : undefined;
  if (!architecture) {
    throw new FileError({
      where: `${path}: model_type`,
      expected: `one of ${Object.keys(architectures).join(", ")}`,
      received: formatValue(type),
      remedy: type === "gemma3" ? "for Gemma 3, only text models are supported" : "this model type is not supported",
    });
  }
  if (json.use_bidirectional_attention) {
    throw new FileError({
      where: `${path}: use_bidirectional_attention`,
      expected: "a causal model",
      received: formatValue(json.use_bidirectional_attention),
      remedy: "pass a decoder: encoders are not supported",
    });
  }
  return architecture;
}
