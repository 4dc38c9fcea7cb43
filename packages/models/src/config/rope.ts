import { type RopeScaling, ropeScaling } from "@mosaic/nn";
import { Fields, isJsonObject, type Json } from "./fields.ts";

// Rotary embeddings of a config.json: `rope_parameters` of transformers 5, or `rope_theta` and `rope_scaling` of older
// folders.

/** The rotary embedding of some layers. */
export interface RopeConfig {
  /** rope_theta. */
  readonly base: number;
  readonly scaling: RopeScaling | null;
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
  /** Whether the scaling of older folders applies to full attention only. */
  readonly scalesFullAttentionOnly: boolean;
}

/** Parses the rotary embedding of the layers of one type. */
export function parseRope(layerType: LayerType, context: RopeContext): RopeConfig {
  const { where, json, maxLength, bases } = context;
  const { field, fallback } = bases[layerType];
  const configFields = new Fields(where, json);
  const parameters = configFields.object("rope_parameters");
  const typeParameters = parameters?.[layerType];
  const allowsScaling = layerType === "full_attention" || !context.scalesFullAttentionOnly;
  const legacyScaling = allowsScaling ? configFields.object("rope_scaling") : undefined;
  const ropeParameters = isJsonObject(typeParameters) ? typeParameters : (parameters ?? legacyScaling ?? {});
  const base = new Fields(`${where}: rope_parameters`, ropeParameters).number(
    "rope_theta",
    configFields.number(field, fallback),
  );
  return { base, scaling: parseScaling(`${where}: rope_parameters`, ropeParameters, maxLength) };
}

function parseScaling(where: string, json: Json, maxLength: number): RopeScaling | null {
  const fields = new Fields(where, json);
  const type = fields.string("rope_type", fields.string("type", "default"));
  if (fields.number("partial_rotary_factor", 1) !== 1) {
    throw fields.error("partial_rotary_factor", "1", "partial rotary embeddings are not supported");
  }
  const originalLength = fields.size("original_max_position_embeddings", maxLength);
  switch (type) {
    case "default":
      return null;
    case "linear":
      return ropeScaling.linear({ factor: fields.number("factor") });
    case "dynamic":
      return ropeScaling.dynamicNtk({ factor: fields.number("factor"), originalLength: maxLength });
    case "llama3": {
      const [lowFreqFactor, highFreqFactor] = [fields.number("low_freq_factor"), fields.number("high_freq_factor")];
      return ropeScaling.llama3({ factor: fields.number("factor"), originalLength, lowFreqFactor, highFreqFactor });
    }
    case "yarn":
      return ropeScaling.yarn({
        factor: fields.number("factor", maxLength / originalLength),
        originalLength,
        betaFast: fields.number("beta_fast", 32),
        betaSlow: fields.number("beta_slow", 1),
        attentionFactor: fields.number("attention_factor", null) ?? undefined,
        mscale: fields.number("mscale", null) ?? undefined,
        mscaleAllDim: fields.number("mscale_all_dim", null) ?? undefined,
        truncate: fields.boolean("truncate", true),
      });
    default:
      throw fields.error(
        "rope_type",
        "one of default, linear, dynamic, yarn, llama3",
        "other RoPE types are not supported",
      );
  }
}
