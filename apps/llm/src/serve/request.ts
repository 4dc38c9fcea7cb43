import { randomInt } from "node:crypto";
import { OptionError } from "@mosaic/attention/core";
import type { ChatMessage } from "@mosaic/models";
import { ApiError, invalidFieldError } from "./api-error.ts";
import type { TextOptions } from "./messages.ts";
import type { Prompt } from "./prompt-encoder.ts";
import type { ServedModel } from "./served-model.ts";

/** A validated request for a text. */
export interface TextRequest {
  readonly kind: RequestKind;
  readonly options: TextOptions;
  readonly isStreamed: boolean;
  /** Whether the last event of a stream contains the usage. */
  readonly includesUsage: boolean;
}

export type RequestKind = "completion" | "chat";

type JsonObject = Readonly<Record<string, unknown>>;

const isJsonObject = (value: unknown): value is JsonObject =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** Default maximum of tokens in a completion, as in OpenAI's API. */
const DEFAULT_COMPLETION_TOKENS = 16;
const DEFAULT_CHAT_TOKENS = 256;
const MAX_STOP_STRINGS = 4;
/** A logit divided by a penalty within these bounds is finite. */
const repetitionPenaltyBounds = { min: 0.01, max: 100 };

/** Fields that the server ignores, or for which it accepts only the value that is equivalent to their absence. */
const restrictedFields: Readonly<
  Record<string, { readonly accepts: (value: unknown) => boolean; readonly expected: string; readonly remedy?: string }>
> = {
  n: { accepts: (value) => value === 1, expected: "1" },
  best_of: { accepts: (value) => value === 1, expected: "1" },
  echo: { accepts: (value) => value === false, expected: "false" },
  suffix: { accepts: () => false, expected: "no value" },
  logprobs: { accepts: (value) => value === false, expected: "false" },
  top_logprobs: { accepts: (value) => value === 0, expected: "0" },
  logit_bias: { accepts: isEmptyValue, expected: "an empty object" },
  presence_penalty: { accepts: (value) => value === 0, expected: "0", remedy: "use repetition_penalty" },
  frequency_penalty: { accepts: (value) => value === 0, expected: "0", remedy: "use repetition_penalty" },
  tools: { accepts: isEmptyValue, expected: "an empty array" },
  tool_choice: { accepts: (value) => value === "none", expected: '"none"' },
  response_format: {
    accepts: (value) => isJsonObject(value) && value["type"] === "text",
    expected: 'an object with the type "text"',
  },
  user: { accepts: (value) => typeof value === "string", expected: "a string" },
};

const supportedFields: readonly string[] = [
  ...["model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k"],
  ...["repetition_penalty", "stop", "seed", "stream", "stream_options"],
];

function isEmptyValue(value: unknown): boolean {
  return typeof value === "object" && value !== null && Object.keys(value).length === 0;
}

/** Options of `parseRequest`. */
export interface RequestContext {
  readonly model: ServedModel;
  /** Aborted when the client has disconnected or the deadline has passed. */
  readonly signal: AbortSignal;
}

/**
 * Parses a body of /v1/completions or /v1/chat/completions. A field that is null is treated as absent. The prompt is
 * encoded last.
 *
 * @throws ApiError, 400 for an invalid or unsupported field, 404 for another model.
 */
export async function parseRequest(kind: RequestKind, body: string, context: RequestContext): Promise<TextRequest> {
  const { model } = context;
  const fields = new RequestFields(parseBody(body));
  const name = fields.getField("model", (value) => typeof value === "string", "a string");
  if (name === undefined) throw invalidFieldError("model", `model: expected "${model.name}", received none`);
  if (name !== model.name) {
    const message = `the model "${String(name)}" does not exist; this server has the model "${model.name}"`;
    throw new ApiError(404, message, { code: "model_not_found", param: "model" });
  }
  fields.rejectUnsupportedFields(kind);
  const isStreamed = fields.getField("stream", isBoolean, "true or false") === true;
  const includesUsage = parseIncludeUsage(fields, isStreamed);
  const samplingOptions = parseSamplingOptions(fields);
  const tokens = await (kind === "chat" ? parseChatTokens : parsePromptTokens)(fields, context);
  return {
    kind,
    options: { tokens, maxNewTokens: parseMaxNewTokens(kind, fields, { tokens, model }), ...samplingOptions },
    isStreamed,
    includesUsage,
  };
}

const isBoolean = (value: unknown): boolean => typeof value === "boolean";

function parseIncludeUsage(fields: RequestFields, isStreamed: boolean): boolean {
  const streamOptions = fields.getField("stream_options", isJsonObject, "an object") as JsonObject | undefined;
  const { include_usage: includesUsage, ...otherFields } = streamOptions ?? {};
  rejectUnknownFields("stream_options", otherFields, "stream_options");
  if (includesUsage === undefined || includesUsage === null || includesUsage === false) return false;
  if (includesUsage === true && isStreamed) return true;
  const expected = isStreamed ? "true or false" : "false without stream";
  const message = `stream_options.include_usage: expected ${expected}, received ${formatTruncatedJson(includesUsage)}`;
  throw invalidFieldError("stream_options", message);
}

/**
 * Rejects unknown fields of an object in the request unless they are null. `param` is the request's top-level field.
 */
function rejectUnknownFields(where: string, otherFields: JsonObject, param: string): void {
  const name = Object.keys(otherFields).find((each) => otherFields[each] !== null);
  if (name === undefined) return;
  throw invalidFieldError(param, `${where}: ${formatTruncatedJson(name)}: unknown field`, "unknown_parameter");
}

function parseBody(body: string): JsonObject {
  let json: unknown;
  try {
    json = JSON.parse(body);
  } catch (error) {
    throw new ApiError(400, `body: expected valid JSON: ${(error as Error).message}`, { code: "invalid_json" });
  }
  if (isJsonObject(json)) return json;
  throw new ApiError(400, `body: expected a JSON object, received ${formatTruncatedJson(json)}`, {
    code: "invalid_json",
  });
}

/** Fields of a body by name, each checked when it is read. */
class RequestFields {
  readonly #json: JsonObject;

  constructor(json: JsonObject) {
    this.#json = json;
  }

  getField(name: string, accepts: (value: unknown) => boolean, expected: string): unknown {
    const value = this.#json[name] ?? undefined;
    if (value === undefined || accepts(value)) return value;
    throw invalidFieldError(name, `${name}: expected ${expected}, received ${formatTruncatedJson(value)}`);
  }

  getNumber(
    name: string,
    {
      min,
      max = Infinity,
      exclusiveMin = -Infinity,
      isInteger = false,
    }: { min?: number; max?: number; exclusiveMin?: number; isInteger?: boolean },
  ): number | undefined {
    const boundTexts = [
      ...(min === undefined ? [] : [`≥ ${min}`]),
      ...(exclusiveMin === -Infinity ? [] : [`> ${exclusiveMin}`]),
      ...(max === Infinity ? [] : [`≤ ${max}`]),
    ];
    const expected = `${isInteger ? "an integer" : "a number"} ${boundTexts.join(" and ")}`;
    const isInBounds = (value: unknown): boolean =>
      typeof value === "number" &&
      (isInteger ? Number.isSafeInteger(value) : Number.isFinite(value)) &&
      value >= (min ?? -Infinity) &&
      value > exclusiveMin &&
      value <= max;
    return this.getField(name, isInBounds, expected) as number | undefined;
  }

  /** Rejects fields and values that the server does not support, because a client may depend on them. */
  rejectUnsupportedFields(kind: RequestKind): void {
    for (const [name, value] of Object.entries(this.#json)) {
      if (value === null) continue;
      const restrictedField = Object.hasOwn(restrictedFields, name) ? restrictedFields[name] : undefined;
      if (restrictedField?.accepts(value) === true) continue;
      if (restrictedField) {
        const { expected, remedy } = restrictedField;
        const remedyText = remedy === undefined ? "" : `; ${remedy}`;
        const message = `${name}: expected ${expected}, received ${formatTruncatedJson(value)}${remedyText}`;
        throw invalidFieldError(name, message, "unsupported_value");
      }
      const isOfOtherEndpoint = name === (kind === "chat" ? "prompt" : "messages");
      if (!supportedFields.includes(name) || isOfOtherEndpoint) {
        const remedy = isOfOtherEndpoint ? `; use ${kind === "chat" ? "/v1/completions" : "/v1/chat/completions"}` : "";
        const message = `${formatTruncatedJson(name)}: unknown field${remedy}`;
        throw invalidFieldError(name, message, "unknown_parameter");
      }
    }
  }
}

/** Formats a value for an error message. A body may nest arrays more deeply than JSON.stringify can. */
function formatTruncatedJson(value: unknown): string {
  let text: string;
  try {
    text = JSON.stringify(value);
  } catch {
    return Array.isArray(value) ? "a deeply nested array" : "a deeply nested object";
  }
  return text.length > 60 ? `${text.slice(0, 57)}…` : text;
}

function parseMaxNewTokens(
  kind: RequestKind,
  fields: RequestFields,
  { tokens, model }: { tokens: readonly number[]; model: ServedModel },
): number {
  const maxTokens = fields.getNumber("max_tokens", { min: 1, isInteger: true });
  const requestedTokens = fields.getNumber("max_completion_tokens", { min: 1, isInteger: true }) ?? maxTokens;
  const availableTokens = model.maxLength - tokens.length;
  if (availableTokens < (requestedTokens ?? 1)) {
    const message = `the maximum context length is ${model.maxLength} tokens; the prompt has ${tokens.length} tokens, and ${requestedTokens === undefined ? "at least 1 more is required" : `${requestedTokens} more were requested`}`;
    throw invalidFieldError(kind === "chat" ? "messages" : "prompt", message, "context_length_exceeded");
  }
  return (
    requestedTokens ?? Math.min(availableTokens, kind === "chat" ? DEFAULT_CHAT_TOKENS : DEFAULT_COMPLETION_TOKENS)
  );
}

function parseSamplingOptions(fields: RequestFields): Omit<TextOptions, "tokens" | "maxNewTokens"> {
  const temperature = fields.getNumber("temperature", { min: 0, max: 2 });
  const topP = fields.getNumber("top_p", { exclusiveMin: 0, max: 1 });
  const topK = fields.getNumber("top_k", { min: 0, isInteger: true });
  const repetitionPenalty = fields.getNumber("repetition_penalty", repetitionPenaltyBounds);
  const seed = fields.getNumber("seed", { min: 0, isInteger: true }) ?? randomInt(2 ** 32);
  return {
    seed,
    stopStrings: parseStopStrings(fields),
    ...(temperature !== undefined && (temperature > 0 ? { doSample: true, temperature } : { doSample: false })),
    ...(topP !== undefined && { topP }),
    ...(topK !== undefined && { topK }),
    ...(repetitionPenalty !== undefined && { repetitionPenalty }),
  };
}

function parseStopStrings(fields: RequestFields): readonly string[] {
  const isStopString = (value: unknown): boolean => typeof value === "string" && value !== "";
  const isStopField = (value: unknown): boolean =>
    isStopString(value) || (Array.isArray(value) && value.length <= MAX_STOP_STRINGS && value.every(isStopString));
  const stop = fields.getField(
    "stop",
    isStopField,
    `a non-empty string, or an array of at most ${MAX_STOP_STRINGS} non-empty strings`,
  );
  return ([] as string[]).concat((stop as string | string[] | undefined) ?? []);
}

/** Returns the tokens of a prompt: a text or its tokens, or an array with one of either. */
async function parsePromptTokens(fields: RequestFields, context: RequestContext): Promise<readonly number[]> {
  const { vocabSize } = context.model;
  const isTokenId = (value: unknown): boolean => Number.isSafeInteger(value) && Number(value) >= 0;
  const areTokenIds = (value: unknown): boolean => Array.isArray(value) && value.every(isTokenId);
  const isPromptValue = (value: unknown): boolean => typeof value === "string" || areTokenIds(value);
  const isPromptField = (value: unknown): boolean =>
    isPromptValue(value) || (Array.isArray(value) && value.length === 1 && isPromptValue(value[0]));
  const promptField = fields.getField(
    "prompt",
    isPromptField,
    "a string, an array of token ids, or an array of one of these",
  ) as string | number[] | [string | number[]];
  if (promptField === undefined) {
    throw invalidFieldError("prompt", "prompt: expected a string, or an array of token ids, received none");
  }
  const isBatchOfOne = Array.isArray(promptField) && promptField.length === 1 && typeof promptField[0] !== "number";
  const prompt = (isBatchOfOne ? promptField[0] : promptField) as string | readonly number[];
  const tokens =
    typeof prompt === "string"
      ? await encodePrompt({ field: "prompt", text: prompt, addSpecialTokens: true }, context)
      : prompt;
  const unknownToken = tokens.find((token) => token >= vocabSize);
  if (tokens.length > 0 && unknownToken === undefined) return tokens;
  const receivedText = unknownToken === undefined ? "none" : String(unknownToken);
  throw invalidFieldError(
    "prompt",
    `prompt: expected at least one token, with ids below ${vocabSize}; received ${receivedText}`,
  );
}

async function parseChatTokens(fields: RequestFields, context: RequestContext): Promise<readonly number[]> {
  const { tokenizer, vocabSize } = context.model;
  const isNonEmptyArray = (value: unknown): boolean => Array.isArray(value) && value.length > 0;
  const messagesField = fields.getField("messages", isNonEmptyArray, "a non-empty array of messages") as
    | readonly unknown[]
    | undefined;
  if (messagesField === undefined) {
    throw invalidFieldError("messages", "messages: expected a non-empty array of messages, received none");
  }
  const messages = messagesField.map(toMessage);
  if (!tokenizer.hasChatTemplate) {
    throw invalidFieldError("messages", "this model has no chat template; use /v1/completions", "no_chat_template");
  }
  let text: string;
  try {
    text = tokenizer.applyChatTemplate(messages);
  } catch (error) {
    if (!(error instanceof OptionError)) throw error; // the template fails
    throw invalidFieldError("messages", error.message);
  }
  const tokens = await encodePrompt({ field: "messages", text, addSpecialTokens: false }, context);
  const unknownToken = tokens.find((token) => token >= vocabSize);
  if (tokens.length > 0 && unknownToken === undefined) return tokens;
  throw invalidFieldError(
    "messages",
    `messages: expected at least one token, with ids below ${vocabSize}; received ${unknownToken ?? "none"}`,
  );
}

/** Encodes a prompt. A text that is certainly too long is rejected before it is encoded. */
function encodePrompt(prompt: Prompt, { model, signal }: RequestContext): Promise<readonly number[]> {
  const minTokens = model.tokenizer.minTokens(prompt.text);
  if (minTokens < model.maxLength) return model.encoder.encode(prompt, signal);
  const message = `the maximum context length is ${model.maxLength} tokens; the prompt has at least ${minTokens} tokens, and at least 1 more is required`;
  throw invalidFieldError(prompt.field, message, "context_length_exceeded");
}

/** Message fields that clients copy from responses of other servers. They are empty if there are no tools. */
const emptyMessageFields: readonly string[] = ["tool_calls", "annotations"];

/** Parses a message. The parts of its content are concatenated to one text. */
function toMessage(value: unknown, index: number): ChatMessage {
  const fieldName = `messages[${index}]`;
  if (!isJsonObject(value) || typeof value["role"] !== "string") {
    throw invalidFieldError(
      "messages",
      `${fieldName}: expected { role, content }, received ${formatTruncatedJson(value)}`,
    );
  }
  const { role: _, content, ...messageFields } = value;
  const otherFields = Object.entries(messageFields).filter(
    ([name, field]) => !(emptyMessageFields.includes(name) && isEmptyValue(field)),
  );
  rejectUnknownFields(fieldName, Object.fromEntries(otherFields), "messages");
  if (typeof content === "string") return { role: value["role"], content };
  const isTextPart = (part: unknown): part is { text: string } =>
    isJsonObject(part) && part["type"] === "text" && typeof part["text"] === "string";
  if (Array.isArray(content) && content.every(isTextPart)) {
    for (const [i, { type: __, text: ___, ...partFields }] of (content as readonly JsonObject[]).entries())
      rejectUnknownFields(`${fieldName}.content[${i}]`, partFields, "messages");
    return { role: value["role"], content: content.map(({ text }) => text).join("") };
  }
  const receivedText = content === undefined ? "none" : formatTruncatedJson(content);
  throw invalidFieldError(
    "messages",
    `${fieldName}.content: expected a string, or parts of the type "text", received ${receivedText}`,
  );
}
