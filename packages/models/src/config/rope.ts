import { type RopeScaling, ropeScaling } from "@mosaic/nn";
import { Fields, type Json } from "./fields.ts";

// Rotary embeddings of a config.json: `rope_parameters` of transformers 5, or `rope_theta` and `rope_scaling` of older
// folders, with the precedence of transformers 5.

/** The rotary embedding of some layers. */
export interface RopeConfig {
  /** rope_theta. */
  readonly base: number;
  readonly scaling: RopeScaling | null;
  /** Maximum sequence length: max_position_embeddings, or the larger one to which the scaling extends it. */
  readonly maxLength: number;
}

export type LayerType = "full_attention" | "sliding_attention";

interface RopeContext {
  /** Name of the config in error messages. */
  readonly where: string;
  readonly json: Json;
  /** max_position_embeddings. */
  readonly maxLength: number;
  /** For each layer type, the field of older folders with the base, and its default. */
  readonly bases: Readonly<Record<LayerType, { readonly field: string; readonly fallback: number }>>;
  /**
   * Whether `rope_parameters` has an object for each layer type. The `rope_scaling` of older folders then applies to
   * full attention only.
   */
  readonly isPerLayerType: boolean;
}

/** The fields of one rotary embedding, and their name in error messages. */
interface RopeFields {
  readonly where: string;
  readonly json: Json;
}

const layerTypes: readonly LayerType[] = ["full_attention", "sliding_attention"];

/** Parses the rotary embedding of the layers of one type. */
export function parseRope(layerType: LayerType, context: RopeContext): RopeConfig {
  const { where, json, maxLength, bases, isPerLayerType } = context;
  const { field, fallback } = bases[layerType];
  const configFields = new Fields(where, json);
  checkPartialRotaryFactor(configFields);
  const rope = isPerLayerType ? selectLayerTypeFields(layerType, context) : selectSharedFields(context);
  const ropeFields = new Fields(rope.where, rope.json);
  const base = ropeFields.number("rope_theta", configFields.number(field, fallback));
  checkPartialRotaryFactor(ropeFields);
  const ownLength = ropeFields.size("original_max_position_embeddings", maxLength);
  // As in transformers, the field outside of the parameters has precedence.
  const originalLength = isPerLayerType ? ownLength : configFields.size("original_max_position_embeddings", ownLength);
  return { base, ...parseScaling(ropeFields, { maxLength, originalLength }) };
}

/** Returns the parameters of all layers. A `rope_scaling`, if there is one, replaces `rope_parameters`. */
function selectSharedFields({ where, json }: RopeContext): RopeFields {
  const configFields = new Fields(where, json);
  const scaling = configFields.object("rope_scaling") ?? {};
  if (Object.keys(scaling).length > 0) return { where: `${where}: rope_scaling`, json: scaling };
  const parameters = configFields.object("rope_parameters") ?? {};
  if (layerTypes.some((type) => parameters[type] !== undefined)) {
    const expected = "the parameters of all layers, because layers of this model type have the same rotary embedding";
    throw configFields.error(
      "rope_parameters",
      expected,
      "move the parameters of the layers to rope_parameters itself",
    );
  }
  return { where: `${where}: rope_parameters`, json: parameters };
}

/** Returns the parameters of a layer type. A `rope_scaling` replaces those of full attention that it contains. */
function selectLayerTypeFields(layerType: LayerType, { where, json }: RopeContext): RopeFields {
  const configFields = new Fields(where, json);
  const parameters = configFields.object("rope_parameters") ?? {};
  if (Object.keys(parameters).length > 0 && layerTypes.every((type) => parameters[type] === undefined)) {
    const expected = "an object with full_attention and sliding_attention, each with the parameters of its layers";
    throw configFields.error("rope_parameters", expected, "move the parameters to the layers to which they apply");
  }
  const typeParameters = new Fields(`${where}: rope_parameters`, parameters).object(layerType) ?? {};
  const scaling = layerType === "full_attention" ? (configFields.object("rope_scaling") ?? {}) : {};
  const hasScaling = Object.keys(scaling).length > 0;
  return {
    where: `${where}: ${hasScaling ? "rope_scaling" : `rope_parameters.${layerType}`}`,
    json: { ...typeParameters, ...scaling },
  };
}

function checkPartialRotaryFactor(fields: Fields): void {
  if (fields.number("partial_rotary_factor", 1) === 1) return;
  throw fields.error("partial_rotary_factor", "1", "partial rotary embeddings are not supported");
}

function parseScaling(
  fields: Fields,
  { maxLength, originalLength }: { readonly maxLength: number; readonly originalLength: number },
): Pick<RopeConfig, "scaling" | "maxLength"> {
  const typeField = fields.string("rope_type", null) === null ? "type" : "rope_type";
  switch (fields.string(typeField, "default")) {
    case "default":
      return { scaling: null, maxLength };
    case "linear":
      return { scaling: ropeScaling.linear({ factor: fields.factor("factor") }), maxLength };
    case "dynamic": {
      const factor = fields.factor("factor");
      const scaling = ropeScaling.dynamicNtk({ factor, originalLength: maxLength });
      return { scaling, maxLength: Math.floor(maxLength * factor) };
    }
    case "llama3":
      return { scaling: parseLlama3Scaling(fields, originalLength), maxLength };
    case "yarn": {
      // As in transformers, the field is required, and null stands for the ratio of the lengths.
      const factor = fields.factor(
        "factor",
        fields.isNull("factor") ? Math.max(1, maxLength / originalLength) : undefined,
      );
      const scaling = parseYarnScaling(fields, { factor, originalLength });
      return { scaling, maxLength: Math.max(maxLength, Math.floor(originalLength * factor)) };
    }
    default:
      throw fields.error(
        typeField,
        "one of default, linear, dynamic, yarn, llama3",
        "other RoPE types are not supported",
      );
  }
}

function parseLlama3Scaling(fields: Fields, originalLength: number): RopeScaling {
  const [lowFreqFactor, highFreqFactor] = [fields.number("low_freq_factor"), fields.number("high_freq_factor")];
  if (highFreqFactor <= lowFreqFactor) {
    throw fields.error("high_freq_factor", `a number above low_freq_factor, ${lowFreqFactor}`, "correct the file");
  }
  return ropeScaling.llama3({ factor: fields.factor("factor"), originalLength, lowFreqFactor, highFreqFactor });
}

function parseYarnScaling(
  fields: Fields,
  { factor, originalLength }: { readonly factor: number; readonly originalLength: number },
): RopeScaling {
  return ropeScaling.yarn({
    factor,
    originalLength,
    betaFast: fields.number("beta_fast", 32),
    betaSlow: fields.number("beta_slow", 1),
    attentionFactor: fields.number("attention_factor", null) ?? undefined,
    mscale: fields.nonNegative("mscale", null) ?? undefined,
    mscaleAllDim: fields.nonNegative("mscale_all_dim", null) ?? undefined,
    truncate: fields.boolean("truncate", true),
  });
}
