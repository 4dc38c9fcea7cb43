import { Fields, type Json } from "./fields.ts";
import { type ModelConfig, parseTokenIds } from "./config.ts";

/** What generation_config.json states: the defaults of `generate`. */
export interface GenerationConfig {
  /** eos_token_id: tokens that end a text. */
  readonly eosTokenIds: readonly number[];
  readonly doSample: boolean;
  readonly temperature: number;
  /** 0: of all tokens. */
  readonly topK: number;
  readonly topP: number;
  readonly repetitionPenalty: number;
}

/** A generation_config.json, or its absence. */
export function parseGenerationConfig(path: string, json: Json | undefined, config: ModelConfig): GenerationConfig {
  const fields = new Fields(path, json ?? {});
  return {
    eosTokenIds:
      json?.eos_token_id == null ? config.eosTokenIds : parseTokenIds(`${path}: eos_token_id`, json.eos_token_id),
    doSample: fields.boolean("do_sample", false),
    temperature: fields.number("temperature", 1),
    topK: fields.count("top_k", 50),
    topP: fields.number("top_p", 1),
    repetitionPenalty: fields.number("repetition_penalty", 1),
  };
}
