import { readFileSync } from "node:fs";
import { fromArray, init, reduceGradients, scope, shard } from "@mosaic/attention";
import { createModel } from "@mosaic/attention/models";
import { AdamW, clipGradNorm, cosine, crossEntropy, linearWarmup } from "@mosaic/attention/nn";

await using ctx = await init({ spSize: 2 }); // 2 ranks share each sequence
const [rows, length, steps] = [8, 128, 200];

/** Tokens are the bytes of a text. Replace text.txt with another text, or use a tokenizer. */
const text = readFileSync(new URL("text.txt", import.meta.url));

// The config.json of a Hugging Face model: a Llama with 0.1 million parameters.
const config = {
  ...{ model_type: "llama", architectures: ["LlamaForCausalLM"], vocab_size: 256, max_position_embeddings: 512 },
  ...{ hidden_size: 64, intermediate_size: 192, num_hidden_layers: 2, num_attention_heads: 4 },
  ...{ tie_word_embeddings: true, eos_token_id: 0 },
};
using model = createModel(ctx, config, { backend: "ring" });
using optimizer = new AdamW(model, { lr: 5e-3, schedule: linearWarmup(10, cosine(steps)) });

/** The first byte of a row of a step's batch. Every rank creates the whole batch, and keeps its half of each row. */
const getRowStart = (step: number, row: number) => (7919 * (rows * step + row)) % (text.length - length);
const batch = (step: number, shift: number) => {
  const at = (i: number) => text[getRowStart(step, Math.floor(i / length)) + (i % length) + shift]!;
  const tokens = Array.from({ length: rows * length }, (_, i) => at(i));
  return shard(ctx, fromArray(ctx, tokens, [rows, length]), 1);
};

for (let step = 0; step < steps; step++) {
  using loss = scope(() => {
    const loss = crossEntropy(ctx, model.forward(batch(step, 0)), batch(step, 1)); // the mean over all ranks
    loss.backward();
    return loss;
  });
  reduceGradients(ctx, model);
  clipGradNorm(model, 1).dispose();
  optimizer.step();
  optimizer.zeroGrad();
  if (step % 50 === 49 && ctx.rank === 0) console.log(`step ${step + 1}: loss ${(await loss.item()).toFixed(3)}`);
}

await model.save("build/model"); // a folder that transformers loads, and `npm run generate`
if (ctx.rank === 0) console.log("saved build/model");
