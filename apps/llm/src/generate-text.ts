import type { Context } from "@mosaic/attention";
import { openModel } from "./model-folder.ts";
import type { ModelSettings } from "./settings.ts";

/** Continues a prompt with the model of a folder, and calls `onText` with each piece of the text. Collective. */
export async function generateText(
  ctx: Context,
  { model: folder, backend, prompt, tokens, temperature, seed }: ModelSettings,
  onText: (piece: { readonly text: string }) => void,
): Promise<void> {
  using model = await openModel(ctx, folder, backend);
  const ids = model.tokenizer!.encode(prompt);
  const maxNewTokens = Math.min(tokens, model.config.maxLength - ids.length);
  const samplingOptions = temperature > 0 ? { doSample: true, temperature } : { doSample: false };
  for await (const { text } of model.generate({ tokens: ids, maxNewTokens, seed, ...samplingOptions }))
    onText({ text });
}
