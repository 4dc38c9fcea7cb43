import { randomUUID } from "node:crypto";
import type { TextPiece } from "./messages.ts";
import type { RequestKind, TextRequest } from "./request.ts";

type FinishReason = TextPiece["finishReason"];

/** OpenAI's response objects for one text: complete, or in the chunks of a stream. Counts the generated tokens. */
export class Answer {
  readonly #kind: RequestKind;
  readonly #promptTokens: number;
  readonly #includesUsage: boolean;
  readonly #model: string;
  readonly #id: string;
  readonly #created = Math.floor(Date.now() / 1000);
  #completionTokens = 0;
  #text = "";
  #finishReason: FinishReason = null;

  constructor({ kind, options, includesUsage }: TextRequest, model: string) {
    this.#kind = kind;
    this.#promptTokens = options.tokens.length;
    this.#includesUsage = includesUsage;
    this.#model = model;
    this.#id = `${kind === "chat" ? "chatcmpl" : "cmpl"}-${randomUUID().replaceAll("-", "")}`;
  }

  append({ text, finishReason }: TextPiece): void {
    this.#completionTokens++;
    this.#text += text;
    this.#finishReason = finishReason;
  }

  /** Returns the complete response. */
  toResponse(): object {
    const message = { role: "assistant", content: this.#text, refusal: null };
    const choiceContent = this.#kind === "chat" ? { message } : { text: this.#text };
    return this.#createObject([this.#createChoice(choiceContent, this.#finishReason)], "whole", {
      usage: this.#countUsage(),
    });
  }

  /** Returns the chunk before the first piece. A completion has none. */
  openingChunks(): readonly object[] {
    return this.#kind === "chat" ? [this.#createChunk({ delta: { role: "assistant", content: "" } }, null)] : [];
  }

  /** Returns the chunks of a piece, or none for a piece without text that is not the last. */
  chunks({ text, finishReason }: TextPiece): readonly object[] {
    const content = this.#kind === "chat" ? { delta: { content: text } } : { text };
    if (finishReason === null) return text === "" ? [] : [this.#createChunk(content, null)];
    const usageChunks = this.#includesUsage ? [this.#createObject([], "chunk", { usage: this.#countUsage() })] : [];
    if (this.#kind === "completion") return [this.#createChunk(content, finishReason), ...usageChunks];
    const lastChunk = this.#createChunk({ delta: {} }, finishReason);
    return [...(text === "" ? [] : [this.#createChunk(content, null)]), lastChunk, ...usageChunks];
  }

  #createChunk(content: object, finishReason: FinishReason): object {
    return this.#createObject(
      [this.#createChoice(content, finishReason)],
      "chunk",
      this.#includesUsage ? { usage: null } : {},
    );
  }

  #createChoice(content: object, finishReason: FinishReason): object {
    return { index: 0, ...content, logprobs: null, finish_reason: finishReason };
  }

  // oxlint-disable-next-line max-params -- the parts of an object, in its order
  #createObject(choices: readonly object[], responseForm: "whole" | "chunk", fields: object): object {
    const chatObjectName = responseForm === "whole" ? "chat.completion" : "chat.completion.chunk";
    const object = this.#kind === "chat" ? chatObjectName : "text_completion";
    return { id: this.#id, object, created: this.#created, model: this.#model, choices, ...fields };
  }

  #countUsage(): object {
    const [promptTokens, completionTokens] = [this.#promptTokens, this.#completionTokens];
    return {
      prompt_tokens: promptTokens,
      completion_tokens: completionTokens,
      total_tokens: promptTokens + completionTokens,
    };
  }
}
