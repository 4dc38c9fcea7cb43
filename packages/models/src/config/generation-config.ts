import { Fields, type Json } from "./fields.ts";
import { type ModelConfig, parseTokenIds } from "./config.ts";
import { listUnsupportedSettings, type UnsupportedSetting } from "./unsupported-generation.ts";

/** What generation_config.json states: the defaults of `generate`. */
export interface GenerationConfig {
  /** eos_token_id: tokens that end a text. */
  readonly eosTokenIds: readonly number[];
  /** The most tokens that are generated; null if the file states none. */
  readonly maxNewTokens: number | null;
  /** The most tokens with those of the prompt, where there is no `maxNewTokens`; null if the file states none. */
  readonly maxLength: number | null;
  readonly doSample: boolean;
  readonly temperature: number;
  /** 0: of all tokens. */
  readonly topK: number;
  readonly topP: number;
  /** 0: of all tokens. */
  readonly minP: number;
  readonly repetitionPenalty: number;
  /** What the file states and `generate` does not support: it is refused there. */
  readonly unsupportedSettings: readonly UnsupportedSetting[];
}

/** A generation_config.json, or its absence. */
export function parseGenerationConfig(path: string, json: Json | undefined, config: ModelConfig): GenerationConfig {
  const fields = new Fields(path, json ?? {});
  return {
    eosTokenIds:
      json?.eos_token_id == null ? config.eosTokenIds : parseTokenIds(`${path}: eos_token_id`, json.eos_token_id),
    maxNewTokens: fields.size("max_new_tokens", null),
    maxLength: fields.size("max_length", null),
    doSample: fields.boolean("do_sample", false),
    temperature: fields.number("temperature", 1),
    topK: fields.count("top_k", 50),
    topP: fields.number("top_p", 1),
    minP: fields.fraction("min_p", 0),
    repetitionPenalty: fields.number("repetition_penalty", 1),
    unsupportedSettings: listUnsupportedSettings(path, json ?? {}),
  };
}
