import { Fields, type Json } from "./fields.ts";
import { type ModelConfig, parseTokenIds } from "./config.ts";
import { listUnsupportedSettings, type UnsupportedSetting } from "./unsupported-generation.ts";

/** Contents of generation_config.json: the defaults of `generate`. */
export interface GenerationConfig {
  /** eos_token_id: the tokens that end a text. */
  readonly eosTokenIds: readonly number[];
  /** Maximum number of generated tokens; null if the file has none. */
  readonly maxNewTokens: number | null;
  /** Maximum number of tokens including the prompt, used without `maxNewTokens`; null if the file has none. */
  readonly maxLength: number | null;
  readonly doSample: boolean;
  readonly temperature: number;
  /** 0: no limit. */
  readonly topK: number;
  readonly topP: number;
  /** 0: no limit. */
  readonly minP: number;
  readonly repetitionPenalty: number;
  /** Fields of the file that `generate` does not support. It throws an error for them. */
  readonly unsupportedSettings: readonly UnsupportedSetting[];
}

/**
 * Parses the fields of a generation_config.json. Folders without this file may have these fields in config.json, where
 * transformers reads them, too. A temperature or a top_k of which transformers samples no token is an error only when a
 * token is sampled.
 */
export function parseGenerationConfig(path: string, json: Json, config: ModelConfig): GenerationConfig {
  const fields = new Fields(path, json);
  const [temperature, topK] = [fields.signedNumber("temperature", 1), fields.signedInteger("top_k", 50)];
  return {
    eosTokenIds:
      json.eos_token_id == null ? config.eosTokenIds : parseTokenIds(`${path}: eos_token_id`, json.eos_token_id),
    maxNewTokens: fields.size("max_new_tokens", null),
    maxLength: fields.size("max_length", null),
    doSample: fields.boolean("do_sample", false),
    temperature: temperature > 0 ? temperature : 1,
    topK: Math.max(topK, 0),
    topP: fields.nonNegative("top_p", 1),
    minP: fields.fraction("min_p", 0),
    repetitionPenalty: fields.number("repetition_penalty", 1),
    unsupportedSettings: listUnsupportedSettings(path, json),
  };
}
