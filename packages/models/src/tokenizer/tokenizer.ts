import { Tokenizer as HuggingFaceTokenizer } from "@huggingface/tokenizers";
import {
  checkArgument,
  defineOptions,
  expectValue,
  formatValue,
  option,
  OptionError,
  type OptionsOf,
} from "@mosaic/core";
import { FileError } from "@mosaic/nn";
import { isJsonObject, type Json } from "../config/fields.ts";
import { ByteFallback } from "./byte-fallback.ts";
import { ChatTemplate, MessagesRejectedError } from "./chat-template.ts";
import { checkTokenizer } from "./check-tokenizer.ts";
import { toEquivalentNormalizer } from "./normalizer.ts";
import { toEquivalentPreTokenizer } from "./pre-tokenizer.ts";
import { createTokenBound, type TokenBound } from "./token-bound.ts";

/** A message of a conversation, the input of chat templates. Templates may read further fields. */
export interface ChatMessage {
  readonly role: string;
  readonly content: unknown;
  readonly [field: string]: unknown;
}

export const chatTemplateOptions = defineOptions("applyChatTemplate", {
  /** Whether the prefix of the model's answer is appended to the text. Default true. */
  addGenerationPrompt: option.boolean({ default: true }),
  /** Further variables of the template, such as `{ enable_thinking: false }`. Default: none. */
  variables: option.custom("an object", isJsonObject, { optional: true }),
});
/** Options of `applyChatTemplate`. */
export type ChatTemplateOptions = OptionsOf<typeof chatTemplateOptions>;

export const encodeOptions = defineOptions("encode", {
  /** Whether the tokenizer adds its special tokens, such as the begin-of-text token. Default true. */
  addSpecialTokens: option.boolean({ default: true }),
});
/** Options of `encode`. */
export type EncodeOptions = OptionsOf<typeof encodeOptions>;

export const decodeOptions = defineOptions("decode", {
  /** Whether special tokens are omitted from the text. Default true. */
  skipSpecialTokens: option.boolean({ default: true }),
});
/** Options of `decode`. */
export type DecodeOptions = OptionsOf<typeof decodeOptions>;

/** The files of a tokenizer. */
export interface TokenizerFiles {
  /** tokenizer.json. */
  readonly tokenizer: Json;
  /** tokenizer_config.json. */
  readonly config: Json;
  /** chat_template.jinja. Default: chat_template of the config. */
  readonly chatTemplate?: string | undefined;
}

/**
 * The tokenizer of a Hugging Face folder: @huggingface/tokenizers, and chat templates by @huggingface/jinja.
 *
 * @example
 * ```ts
 * import { Tokenizer } from "@mosaic/models";
 * const tokenizer = new Tokenizer("tokenizer.json", {
 *   tokenizer: {
 *     model: { type: "BPE", vocab: { a: 0, b: 1, ab: 2 }, merges: [["a", "b"]] },
 *     added_tokens: [],
 *     ...{ normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null },
 *   },
 *   config: { chat_template: "{% for message in messages %}{{ message.content }}{% endfor %}" },
 * });
 * tokenizer.encode("aab"); // => [0, 2]
 * tokenizer.applyChatTemplate([{ role: "user", content: "ba" }]); // => "ba"
 * ```
 * @throws FileError for a tokenizer that is not supported.
 */
export class Tokenizer {
  readonly #path: string;
  readonly #huggingFaceTokenizer: HuggingFaceTokenizer;
  readonly #byteFallback: ByteFallback | null;
  readonly #tokenBound: TokenBound;
  /** chat_template, before it is parsed. */
  readonly #templateText: unknown;
  readonly #specialTokens: Readonly<Record<string, string>>;
  #template: ChatTemplate | undefined;

  constructor(path: string, files: TokenizerFiles) {
    const areJsonFiles = isJsonObject(files) && isJsonObject(files.tokenizer) && isJsonObject(files.config);
    expectValue("Tokenizer", areJsonFiles, "{ tokenizer, config } with the parsed JSON of both files", files);
    expectValue("Tokenizer: path", typeof path === "string", "the path of tokenizer.json, used in messages", path);
    this.#path = path;
    this.#templateText = files.chatTemplate ?? selectDefaultTemplate(files.config.chat_template);
    this.#specialTokens = readSpecialTokens(files.config);
    checkTokenizer(path, files.tokenizer);
    this.#tokenBound = createTokenBound(files.tokenizer);
    const settings = createSettings(files);
    [this.#huggingFaceTokenizer, this.#byteFallback] = this.#run(() => {
      const json = {
        ...files.tokenizer,
        normalizer: toEquivalentNormalizer(files.tokenizer.normalizer),
        pre_tokenizer: toEquivalentPreTokenizer(files.tokenizer.pre_tokenizer),
      };
      const tokenizer = new HuggingFaceTokenizer(json, settings);
      return [tokenizer, ByteFallback.create(files, (token) => tokenizer.token_to_id(token))] as const;
    });
  }

  /** Whether the folder has a chat template, which `applyChatTemplate` requires. */
  get hasChatTemplate(): boolean {
    return typeof this.#templateText === "string";
  }

  /**
   * Returns one more than the largest id. Added tokens, which a model may lack, are included unless `withAddedTokens`
   * is false.
   */
  vocabSize(withAddedTokens = true): number {
    expectValue("Tokenizer.vocabSize", typeof withAddedTokens === "boolean", "a boolean", withAddedTokens);
    let size = 0;
    // Ids between those of the vocabulary and an added token have the token undefined.
    for (const [token, id] of this.#huggingFaceTokenizer.get_vocab(withAddedTokens) as Map<
      string | undefined,
      number
    >) {
      if (token !== undefined) size = Math.max(size, id + 1);
    }
    return size;
  }

  /** Returns the id of a token, including special tokens, by its text. */
  tokenId(token: string): number | undefined {
    expectValue("Tokenizer.tokenId", typeof token === "string", "a string", token);
    return this.#huggingFaceTokenizer.token_to_id(token);
  }

  /**
   * Returns a lower bound of the number of tokens of a text, without encoding it, to reject a text that is too long.
   * Encoding a megabyte takes seconds. The bound is 0 for a tokenizer that may omit a part of the text.
   */
  minTokens(text: string): number {
    expectValue("Tokenizer.minTokens", typeof text === "string", "a string", text);
    return this.#tokenBound(text);
  }

  /** Encodes a text as ids, with the special tokens that the tokenizer adds, such as the begin-of-text token. */
  encode(text: string, options?: EncodeOptions): number[] {
    expectValue("Tokenizer.encode", typeof text === "string", "a string", text);
    const { addSpecialTokens } = encodeOptions.parse(options, "Tokenizer.encode");
    const encoding = this.#run(() => this.#huggingFaceTokenizer.encode(text, { add_special_tokens: addSpecialTokens }));
    const { ids, tokens } = encoding as { readonly ids: number[]; readonly tokens: readonly string[] };
    const unknownIndex = ids.findIndex((id) => !Number.isSafeInteger(id));
    if (unknownIndex < 0) return ids;
    throw new OptionError({
      where: "Tokenizer.encode",
      expected: "a text of tokens of the vocabulary, because the tokenizer has no unknown token",
      received: formatValue(tokens[unknownIndex]),
      remedy: `remove it from the text, or add an unk_token to ${this.#path}`,
    });
  }

  /**
   * Decodes ids to text, by default without special tokens. Unknown ids are skipped, as in Python's tokenizers, because
   * many models pad their vocab_size and may generate any id below it.
   */
  decode(ids: readonly number[], options?: DecodeOptions): string {
    checkArgument("Tokenizer.decode", ids, option.array(option.integer({ min: 0 })));
    const { skipSpecialTokens } = decodeOptions.parse(options, "Tokenizer.decode");
    const knownIds = ids.filter((id) => this.#huggingFaceTokenizer.id_to_token(id) !== undefined);
    const decodableIds = this.#byteFallback?.toDecodableIds(knownIds, skipSpecialTokens) ?? knownIds;
    if (decodableIds.length === 0) return "";
    // As in transformers 5: removing spaces before punctuation would corrupt text that these tokenizers restore
    // exactly.
    const settings = { skip_special_tokens: skipSpecialTokens, clean_up_tokenization_spaces: false };
    return this.#run(() => this.#huggingFaceTokenizer.decode([...decodableIds], settings));
  }

  /**
   * Formats a conversation as the text that the model was trained on, with the folder's chat template. The text
   * contains special tokens, so encode it with `addSpecialTokens: false`.
   *
   * @throws FileError for a folder without a chat template, and for a template that fails; OptionError for messages that
   * the template rejects with `raise_exception`.
   */
  applyChatTemplate(messages: readonly ChatMessage[], options?: ChatTemplateOptions): string {
    const where = "Tokenizer.applyChatTemplate";
    const areMessages =
      Array.isArray(messages) && messages.every((each: unknown) => isJsonObject(each) && typeof each.role === "string");
    expectValue(where, areMessages, "messages { role, content }", messages);
    const { addGenerationPrompt, variables } = chatTemplateOptions.parse(options, where);
    this.#template ??= this.#parseTemplate();
    const template = this.#template;
    try {
      return template.render({
        ...this.#specialTokens,
        ...variables,
        messages,
        add_generation_prompt: addGenerationPrompt,
      });
    } catch (cause) {
      const received = (cause as Error).message;
      if (cause instanceof MessagesRejectedError)
        throw new OptionError({ where, expected: "messages that the chat template accepts", received }, { cause });
      const expected = "a chat template that formats these messages";
      throw new FileError({ where: this.#path, expected, received }, { cause });
    }
  }

  /** Calls @huggingface/tokenizers, which checks most of tokenizer.json only when it is used. */
  #run<T>(body: () => T): T {
    return rethrowAsFileError(this.#path, "a tokenizer that @huggingface/tokenizers supports", body);
  }

  #parseTemplate(): ChatTemplate {
    const text = this.#templateText;
    if (typeof text === "string")
      return rethrowAsFileError(this.#path, "a chat template in Jinja", () => new ChatTemplate(text));
    throw new FileError({
      where: `${this.#path}: chat_template`,
      expected: "a template in Jinja",
      received: formatValue(text),
      remedy: "pass a prompt instead of messages: the model has no valid chat template",
    });
  }
}

/**
 * Returns the settings that @huggingface/tokenizers reads from tokenizer_config.json, with the values of Python's
 * tokenizers: the unknown token is that of tokenizer.json, and texts are only changed by its normalizer.
 */
function createSettings({ tokenizer, config }: TokenizerFiles): Json {
  const unknownToken = isJsonObject(tokenizer.model) ? (tokenizer.model.unk_token ?? undefined) : undefined;
  return { ...config, unk_token: unknownToken, remove_space: false, do_lowercase_and_remove_accent: false };
}

/** Reads bos_token, eos_token, …, with the names that templates use. */
function readSpecialTokens(config: Json): Record<string, string> {
  const entries = Object.entries(config).flatMap(([name, value]): [string, string][] => {
    if (!name.endsWith("_token")) return [];
    if (typeof value === "string") return [[name, value]];
    return isJsonObject(value) && typeof value.content === "string" ? [[name, value.content]] : [];
  });
  return Object.fromEntries(entries);
}

/** Returns the template, or the one named "default" of several. */
function selectDefaultTemplate(value: unknown): unknown {
  if (!Array.isArray(value)) return value;
  const defaultEntry: unknown = value.find((each: unknown) => isJsonObject(each) && each.name === "default");
  return isJsonObject(defaultEntry) ? defaultEntry.template : undefined;
}

function rethrowAsFileError<T>(path: string, expected: string, body: () => T): T {
  try {
    return body();
  } catch (cause) {
    throw new FileError({ where: path, expected, received: (cause as Error).message }, { cause });
  }
}
