import { type Context, rand } from "@mosaic/core";
import type { Tokenizer } from "../tokenizer/tokenizer.ts";
import { type SampledToken, sampleToken, type SamplingSettings } from "./sampling.ts";
import { TextStream } from "./text-stream.ts";

/** One step of a generation. */
export interface GeneratedToken extends SampledToken {
  /**
   * The text that the token adds. It may be empty, because a character of several tokens is returned with the last one.
   * Always "" without a tokenizer.
   */
  readonly text: string;
  /**
   * For the last token, "stop" after an end token or a stop string, "length" at `maxNewTokens`; null for other tokens.
   */
  readonly finishReason: "stop" | "length" | null;
}

/** Parameters of a text to generate. */
export interface TextPlan {
  readonly prompt: readonly number[];
  readonly maxNewTokens: number;
  readonly settings: SamplingSettings;
  readonly stopStrings: readonly string[];
  readonly eosTokenIds: readonly number[];
  readonly seed: number;
}

/** A text that is being generated. Chooses its tokens, converts them to text, and detects its end. */
export class GeneratedText {
  readonly #plan: TextPlan;
  readonly #stream: TextStream | null;
  readonly #uniforms: Float32Array | null;
  readonly #tokens: number[];

  private constructor(plan: TextPlan, tokenizer: Tokenizer | null, uniforms: Float32Array | null) {
    this.#plan = plan;
    this.#stream = tokenizer ? new TextStream(tokenizer, plan.prompt, plan.stopStrings) : null;
    this.#uniforms = uniforms;
    this.#tokens = [...plan.prompt];
  }

  static async create(
    { ctx, tokenizer }: { readonly ctx: Context; readonly tokenizer: Tokenizer | null },
    plan: TextPlan,
  ): Promise<GeneratedText> {
    return new GeneratedText(plan, tokenizer, await drawUniforms(ctx, plan));
  }

  /** Chooses the next token by the logits [V] after the tokens so far. Modifies the logits. */
  add(logits: Float32Array): GeneratedToken {
    const { prompt, maxNewTokens, settings, eosTokenIds } = this.#plan;
    const step = this.#tokens.length - prompt.length;
    const sampledToken = sampleToken(logits, this.#tokens, settings, this.#uniforms?.[step] ?? 0);
    this.#tokens.push(sampledToken.token);
    const isEosToken = eosTokenIds.includes(sampledToken.token);
    const textPiece = isEosToken ? undefined : this.#stream?.push(sampledToken.token);
    const isStopped = isEosToken || textPiece?.isStopped === true;
    const isLast = isStopped || step === maxNewTokens - 1;
    const remainingText = isLast && textPiece?.isStopped !== true ? (this.#stream?.flush() ?? "") : "";
    const finishReason = isStopped ? "stop" : isLast ? "length" : null;
    return { ...sampledToken, text: (textPiece?.text ?? "") + remainingText, finishReason };
  }
}

/** Draws a number in [0, 1) for each step, the same on every rank and mesh; null without sampling. */
async function drawUniforms(ctx: Context, { seed, maxNewTokens, settings }: TextPlan): Promise<Float32Array | null> {
  if (!settings.doSample) return null;
  using uniforms = rand(ctx, [maxNewTokens], { seed, stream: 0 });
  return await uniforms.read();
}
