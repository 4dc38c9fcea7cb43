import {
  defineOptions,
  formatValue,
  option,
  OptionError,
  type OptionsOf,
  OutOfMemoryError,
  type ResolvedOptionsOf,
} from "@mosaic/core";
import type { GenerationConfig } from "../config/generation-config.ts";
import { rejectUnsupportedSettings } from "../config/unsupported-generation.ts";
import type { ChatMessage, Tokenizer } from "../tokenizer/tokenizer.ts";
import { decode, type DecodingModel, prefill } from "./decode.ts";
import { GeneratedText, type GeneratedToken, type TextPlan } from "./generated-text.ts";
import { checkCachedModel, GenerationCache } from "./generation-cache.ts";

const isMessage = (value: unknown): value is ChatMessage =>
  typeof (value as Partial<ChatMessage> | null)?.role === "string";

export const generateOptions = defineOptions("generate", {
  /** The text to continue. The tokenizer adds its special tokens. Default: see tokens. */
  prompt: option.string({ optional: true }),
  /**
   * The conversation to answer, such as `[{ role: "user", content: "…" }]`, formatted with the folder's chat template.
   * Default: see tokens.
   */
  messages: option.array(option.custom("a message { role, content }", isMessage), { optional: true }),
  /** The ids of the text to continue. Default: those of prompt or messages; exactly one of the three is required. */
  tokens: option.array(option.integer({ min: 0 }), { optional: true }),
  /**
   * Maximum number of generated tokens. Default: max_new_tokens of generation_config.json, the remainder of its
   * max_length, or 256, limited by the remaining length of the model.
   */
  maxNewTokens: option.integer({ min: 1, optional: true }),
  /**
   * Whether tokens are sampled by their probabilities; otherwise the most probable token is chosen. Default: do_sample
   * of generation_config.json, or false.
   */
  doSample: option.boolean({ optional: true }),
  /** Divisor of the logits before the softmax. Default: that of generation_config.json, or 1. */
  temperature: option.number({ above: 0, optional: true }),
  /** Sample from this number of most probable tokens; 0: from all. Default: top_k of generation_config.json, or 50. */
  topK: option.integer({ min: 0, optional: true }),
  /**
   * Sample from the most probable tokens whose probabilities add up to this value. Default: top_p of
   * generation_config.json, or 1.
   */
  topP: option.number({ above: 0, max: 1, optional: true }),
  /**
   * Sample from the tokens whose probability is at least this fraction of the largest. Default: min_p of
   * generation_config.json, or 0.
   */
  minP: option.number({ min: 0, max: 1, optional: true }),
  /**
   * Divides the logits of tokens that occurred if they are positive, otherwise multiplies them. Default: that of
   * generation_config.json, or 1.
   */
  repetitionPenalty: option.number({ above: 0, optional: true }),
  /** Strings that end the generation. They are not returned. Default: none. */
  stopStrings: option.array(option.string({ expected: "a non-empty string" }), { optional: true }),
  /**
   * Tokens that end the generation; `[]` for none. Default: eos_token_id of generation_config.json, or of config.json.
   */
  eosTokenIds: option.array(option.integer({ min: 0 }), { optional: true }),
  /** Seed of the random numbers. The same seed gives the same text on every mesh. Default: the context's seed. */
  seed: option.integer({ min: 0, optional: true }),
  /** A cache for keys and values that several calls share. Default: a new one for this call. */
  cache: option.instance(GenerationCache, { optional: true }),
});
/** Options of `CausalLM.generate`. */
export type GenerateOptions = OptionsOf<typeof generateOptions>;
type ParsedOptions = ResolvedOptionsOf<typeof generateOptions>;

/** A model with the tokenizer and the defaults that generation needs. */
export interface GenerativeModel extends DecodingModel {
  readonly tokenizer: Tokenizer | null;
  readonly generationConfig: GenerationConfig;
}

/** Validated arguments of `generate`. */
export interface Generation extends TextPlan {
  readonly cache: GenerationCache | undefined;
}

const CALL_NAME = "generate";

/** Checks the options of a call. Nothing is computed or sent. `maxLength` limits the prompt and the new tokens. */
export function resolveGeneration(
  model: GenerativeModel,
  options: GenerateOptions,
  maxLength = model.config.maxLength,
): Generation {
  const parsed = generateOptions.parse(options);
  const { generationConfig: defaults, ctx } = model;
  const { doSample = defaults.doSample } = parsed;
  rejectUnsupportedSettings(defaults.unsupportedSettings, { ...parsed, doSample });
  const prompt = resolvePromptTokens(model, parsed);
  const { maxNewTokens = resolveMaxNewTokens(defaults, prompt.length, maxLength), stopStrings = [] } = parsed;
  if (maxNewTokens > maxLength - prompt.length) {
    throw createLengthError(model, { maxLength, promptLength: prompt.length, maxNewTokens });
  }
  if (stopStrings.length > 0) requireTokenizer(model, "stopStrings");
  const { cache } = parsed;
  if (cache) checkCachedModel(`${CALL_NAME}: cache`, cache, model);
  if (cache) checkPrefill(model, cache, prompt.length);
  if (cache && cache.freeTokens < prompt.length + maxNewTokens) {
    throw new OutOfMemoryError({
      where: `${CALL_NAME}: cache`,
      expected: `free memory for ${prompt.length + maxNewTokens} tokens`,
      received: `free memory for ${cache.freeTokens} tokens`,
      remedy: "create the cache with a larger maxTokens, or wait until other generations finish",
    });
  }
  return {
    ...{ prompt, maxNewTokens, stopStrings, cache },
    settings: {
      doSample,
      temperature: parsed.temperature ?? defaults.temperature,
      topK: parsed.topK ?? defaults.topK,
      topP: parsed.topP ?? defaults.topP,
      minP: parsed.minP ?? defaults.minP,
      repetitionPenalty: parsed.repetitionPenalty ?? defaults.repetitionPenalty,
    },
    eosTokenIds: parsed.eosTokenIds ?? defaults.eosTokenIds,
    seed: parsed.seed ?? ctx.seed,
  };
}

function createLengthError(
  { config }: GenerativeModel,
  {
    maxLength,
    promptLength,
    maxNewTokens,
  }: { readonly maxLength: number; readonly promptLength: number; readonly maxNewTokens: number },
): OptionError {
  const isBatchLimit = maxLength < config.maxLength;
  return new OptionError({
    where: `${CALL_NAME}: maxNewTokens`,
    expected: isBatchLimit
      ? `at most ${maxLength} tokens in total, because the rotation of longer texts depends on their length with rope_type "dynamic"`
      : `at most ${maxLength} tokens in total, the maximum length of the model by max_position_embeddings and rope_parameters`,
    received: `a prompt of ${promptLength} tokens and maxNewTokens of ${maxNewTokens}`,
    remedy: `shorten the prompt, or lower maxNewTokens${isBatchLimit ? ", or generate the text alone with CausalLM.generate" : ""}`,
  });
}

/**
 * Throws an OptionError if the cache divides a prompt into parts that would be rotated by different frequencies, because
 * these depend on the length.
 */
function checkPrefill({ config }: GenerativeModel, { maxPrefillTokens }: GenerationCache, promptLength: number): void {
  if (promptLength <= maxPrefillTokens || promptLength <= config.maxBatchLength) return;
  throw new OptionError({
    where: `${CALL_NAME}: cache`,
    expected: `maxPrefillTokens of at least ${promptLength}, because a prompt of more than ${config.maxBatchLength} tokens is processed as a whole with rope_type "dynamic"`,
    received: String(maxPrefillTokens),
    remedy: "create the cache with a larger maxPrefillTokens",
  });
}

/**
 * Returns the default of generation_config.json, or 256, limited by the remaining length of the model but at least 1,
 * so that a prompt of the model's full length is rejected later.
 */
function resolveMaxNewTokens(defaults: GenerationConfig, promptLength: number, modelMaxLength: number): number {
  const { maxLength } = defaults;
  const maxNewTokens = defaults.maxNewTokens ?? (maxLength === null ? 256 : maxLength - promptLength);
  if (maxNewTokens >= 1) return Math.min(maxNewTokens, Math.max(modelMaxLength - promptLength, 1));
  throw new OptionError({
    where: `${CALL_NAME}: maxNewTokens`,
    expected: `fewer than ${maxLength} tokens in the prompt, the max_length of generation_config.json`,
    received: `a prompt of ${promptLength} tokens`,
    remedy: "pass maxNewTokens, or shorten the prompt",
  });
}

function resolvePromptTokens(model: GenerativeModel, { prompt, messages, tokens }: ParsedOptions): readonly number[] {
  const givenInputs = Object.entries({ prompt, messages, tokens }).filter(([, value]) => value !== undefined);
  if (givenInputs.length !== 1) {
    throw new OptionError({
      where: CALL_NAME,
      expected: "exactly one of prompt, messages and tokens",
      received: givenInputs.map(([name]) => name).join(" and ") || "none",
    });
  }
  const ids =
    tokens ??
    (messages
      ? requireTokenizer(model, "messages").encode(requireTokenizer(model, "messages").applyChatTemplate(messages), {
          addSpecialTokens: false,
        })
      : requireTokenizer(model, "prompt").encode(prompt!));
  const { vocabSize } = model.config;
  const unknownId = ids.find((id) => id >= vocabSize);
  if (ids.length > 0 && unknownId === undefined) return ids;
  throw new OptionError({
    where: `${CALL_NAME}: ${givenInputs[0]![0]}`,
    expected: `at least one token, each below ${vocabSize}, the vocabulary size of the model`,
    received: unknownId === undefined ? "none" : formatValue(unknownId),
    remedy: "use the tokenizer of this model",
  });
}

function requireTokenizer({ tokenizer }: GenerativeModel, option: string): Tokenizer {
  if (tokenizer) return tokenizer;
  throw new OptionError({
    where: `${CALL_NAME}: ${option}`,
    expected: "a model with a tokenizer",
    received: "a folder without tokenizer.json",
    remedy: "pass tokens, or add the file to the folder",
  });
}

/** Creates the cache of one call. It processes the prompt as a whole if the rotation depends on the length. */
function createOwnCache(model: GenerativeModel, maxTokens: number, promptLength: number): GenerationCache {
  const isWhole = promptLength > model.config.maxBatchLength;
  return new GenerationCache(model, { maxTokens, maxSequences: 1, ...(isWhole && { maxPrefillTokens: promptLength }) });
}

/**
 * Generates the tokens of a validated call. Collective: every rank of the backend's axes iterates to the end, and
 * receives the same tokens.
 */
export async function* generateTokens(model: GenerativeModel, call: Generation): AsyncGenerator<GeneratedToken, void> {
  const { prompt, maxNewTokens } = call;
  const maxTokens = prompt.length + maxNewTokens;
  using ownCache = call.cache ? null : createOwnCache(model, maxTokens, prompt.length);
  const cache = call.cache ?? ownCache!;
  using sequence = cache.createSequence();
  const text = await GeneratedText.create(model, call);
  let logits: Float32Array | null = null;
  while (logits === null) logits = await prefill(model, prompt, { cache, sequence }, cache.maxPrefillTokens);
  for (;;) {
    const step: GeneratedToken = text.add(logits);
    yield step;
    if (step.finishReason !== null) return;
    [logits] = (await decode(model, [step.token], { cache, sequences: [sequence] })) as [Float32Array];
    model.ctx.world.markStep();
  }
}
