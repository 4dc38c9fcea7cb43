import { type Context, rand } from "@mosaic/core";
import type { Tokenizer } from "../tokenizer/tokenizer.ts";
import { type SampledToken, sampleToken, type SamplingSettings } from "./sampling.ts";
import { TextStream } from "./text-stream.ts";

/** One step of a generation. */
export interface GeneratedToken extends SampledToken {
  /** What it adds to the text, which may be nothing: characters of several tokens come with the last. Always "" without a tokenizer. */
  readonly text: string;
  /** Of the last token: "stop" for an end token or a stop string, "length" for `maxNewTokens`. */
  readonly finishReason: "stop" | "length" | null;
}

/** What is to be generated. */
export interface TextPlan {
  readonly prompt: readonly number[];
  readonly maxNewTokens: number;
  readonly settings: SamplingSettings;
  readonly stopStrings: readonly string[];
  readonly eosTokenIds: readonly number[];
  readonly seed: number;
}

/** A text that is being generated: chooses its tokens, turns them into text, and ends it. */
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

  /** The token that follows, by the logits [V] after those so far, which it changes. */
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

/** A number in [0, 1) for each step, the same on every rank and mesh; none without sampling. */
async function drawUniforms(ctx: Context, { seed, maxNewTokens, settings }: TextPlan): Promise<Float32Array | null> {
  if (!settings.doSample) return null;
  using uniforms = rand(ctx, [maxNewTokens], { seed, stream: 0 });
  return await uniforms.read();
}
