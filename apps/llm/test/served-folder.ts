import { mkdirSync, writeFileSync } from "node:fs";
import { world } from "@mosaic/attention";
import { createModel } from "@mosaic/models";
import { readCorpus } from "../src/corpus.ts";
import { createConfig, END_TOKEN_ID, folderFilePaths } from "../src/model-folder.ts";
import { tokenizeCorpus } from "../src/tokenizer/corpus-tokens.ts";

/** Sizes of the model in the folder. */
export const sizes = {
  vocabulary: 300,
  hidden: 32,
  layers: 2,
  heads: 2,
  kvHeads: 1,
  length: 128,
  ropeBase: 10_000,
  embeddingStd: 0.02,
};
const chatTemplate = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:";

/**
 * Writes a folder with a model of random weights, a tokenizer trained on one book, and a chat template. `length` is the
 * maximum number of tokens.
 */
export async function writeServedFolder(folder: string, length: number = sizes.length): Promise<void> {
  mkdirSync(folder, { recursive: true });
  const book = readCorpus().train.find(({ name }) => name === "Jude")!;
  const { tokenizerFiles } = tokenizeCorpus({ train: [book], heldOut: [] }, sizes.vocabulary);
  const { tokenizer, tokenizerConfig, generation } = folderFilePaths(folder);
  writeFileSync(tokenizer, JSON.stringify(tokenizerFiles.tokenizer));
  writeFileSync(tokenizerConfig, JSON.stringify({ ...tokenizerFiles.config, chat_template: chatTemplate }));
  writeFileSync(generation, JSON.stringify({ eos_token_id: END_TOKEN_ID, do_sample: true, top_p: 0.95 }));
  const [ctx] = await world(1, { seed: 0 });
  {
    using model = createModel(ctx!, createConfig({ ...sizes, length }));
    await model.save(folder);
  }
  await ctx!.close();
}
