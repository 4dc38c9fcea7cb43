// A small Llama learns a text, byte by byte, on two ranks that share each sequence; it continues a line, and is saved as a Hugging Face folder.
import { readFileSync } from "node:fs";
import { init, reduceGradients, scope } from "@mosaic/attention";
import { createModel } from "@mosaic/attention/models";
import { AdamW, clipGradNorm, DataLoader, linearCrossEntropy, tokenArrays } from "@mosaic/attention/nn";

const rowLength = 256;
const config = {
  ...{ architectures: ["LlamaForCausalLM"], model_type: "llama", vocab_size: 256, max_position_embeddings: 1024 },
  ...{ hidden_size: 64, intermediate_size: 192, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2 },
  tie_word_embeddings: true,
};

await using ctx = await init({ spSize: 2 }); // 2 ranks share each sequence
// To go on from a trained model instead: await loadModel(ctx, "folder", { backend: "ring", placement: "zigzag" }).
using model = createModel(ctx, config, { backend: "ring", placement: "zigzag" });
using optimizer = new AdamW(model, { lr: 6e-3 });

// text.txt: the first chapters of Genesis in the King James Version. A token is a byte; a tokenizer has words instead.
const source = tokenArrays([[...readFileSync("text.txt")]]);
const loader = new DataLoader(ctx, source, { rowLength, batchSize: 4, placement: "zigzag" });
for (let step = 1; step <= 150; step++) {
  using batch = loader.next();
  using loss = scope(() => {
    const { tokens, labels, mask, placement } = batch;
    const hidden = model.decoder.forward(tokens, { mask, placement, sequenceLength: rowLength });
    const loss = linearCrossEntropy(ctx, hidden, { weight: model.decoder.embedding.weight }, labels);
    loss.backward();
    return loss;
  });
  reduceGradients(ctx, model);
  clipGradNorm(model, 1);
  optimizer.step();
  optimizer.zeroGrad();
  if (step % 50 === 0 && ctx.rank === 0)
    console.log(`step ${step}: loss ${(await loss.item()).toFixed(2)} nats a byte`);
}

const prompt = Buffer.from("And God said, ");
const continuation: number[] = [];
// Every rank makes the same call and gets the same tokens.
for await (const { token } of model.generate({ tokens: [...prompt], maxNewTokens: 100, endTokens: [] })) {
  continuation.push(token);
}
if (ctx.rank === 0) console.log(`${prompt}${Buffer.from(continuation)}`);
await model.save("build/model"); // config.json and model.safetensors
if (ctx.rank === 0) console.log("the model is in build/model");
