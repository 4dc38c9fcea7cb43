import type { Context } from "@mosaic/attention";
import { loadTokenizer } from "@mosaic/models";
import { openModel, readModelConfig } from "./model-folder.ts";
import { type ModelSettings, UsageError } from "./settings.ts";

/** Checks that the model of a folder can continue a prompt. Throws a UsageError otherwise. */
export async function checkPrompt({ model: folder, prompt }: ModelSettings): Promise<void> {
  const { maxLength } = readModelConfig(folder);
  const { length } = (await loadTokenizer(folder)).encode(prompt);
  if (length === 0) {
    throw new UsageError(`--prompt: expected at least one token, received ${JSON.stringify(prompt)}`);
  }
  if (length < maxLength) return;
  throw new UsageError(
    `--prompt: expected fewer than ${maxLength} tokens, the maximum length of the model, received ${length}; pass a shorter prompt`,
  );
}

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
