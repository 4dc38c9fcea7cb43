import { readFileSync, writeFileSync } from "node:fs";
import { world } from "@mosaic/attention";
import { createModel as createCausalLM } from "@mosaic/models";
import { folderFiles, prepareFolder } from "../src/model-folder.ts";
import { parseTrainSettings } from "../src/settings.ts";

/** A folder with a model of random weights, a tokenizer and a chat template. */
export async function writeServedFolder(folder: string): Promise<void> {
  const sizes = "--vocabulary 300 --hidden 32 --layers 2 --heads 2 --kv-heads 1 --length 128".split(" ");
  prepareFolder(folder, parseTrainSettings([...sizes, "--out", folder]));
  const { config, tokenizerConfig } = folderFiles(folder);
  const [ctx] = await world(1, { seed: 0 });
  {
    using model = createCausalLM(ctx!, JSON.parse(readFileSync(config, "utf8")) as object);
    await model.save(folder);
  }
  await ctx!.close();
  const json = JSON.parse(readFileSync(tokenizerConfig, "utf8")) as object;
  const template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:";
  writeFileSync(tokenizerConfig, JSON.stringify({ ...json, chat_template: template }));
}
