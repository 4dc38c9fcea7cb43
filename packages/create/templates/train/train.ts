import {
  fromArray,
  init,
  Linear,
  Module,
  MultiAxisAttention,
  reduceGradients,
  scope,
  shard,
  type Tensor,
} from "@mosaic/attention";
import {
  AdamW,
  clipGradNorm,
  crossEntropy,
  Embedding,
  LayerNorm,
  MLP,
  ModuleList,
  RotaryEmbedding,
} from "@mosaic/attention/nn";

await using ctx = await init({ spSize: 2 }); // 2 ranks share each sequence

class Block extends Module {
  norm1 = this.addChild("norm1", new LayerNorm(ctx, 32));
  options = {
    embedDim: 32,
    numHeads: 4,
    attentionAxis: 1,
    backend: "ring",
    causal: true,
    sequenceLength: 128,
  } as const;
  attn = this.addChild("attn", new MultiAxisAttention(ctx, { ...this.options, positions: new RotaryEmbedding(8) }));
  norm2 = this.addChild("norm2", new LayerNorm(ctx, 32));
  mlp = this.addChild("mlp", new MLP(ctx, { embedDim: 32 }));
  forward(x: Tensor): Tensor {
    const y = x.add(this.attn.forward(this.norm1.forward(x)));
    return y.add(this.mlp.forward(this.norm2.forward(y)));
  }
}

class Transformer extends Module {
  embed = this.addChild("embed", new Embedding(ctx, 64, 32));
  blocks = this.addChild("blocks", new ModuleList([new Block(), new Block()]));
  head = this.addChild("head", new Linear(ctx, 32, 64));
  forward(tokens: Tensor): Tensor {
    let x = this.embed.forward(tokens);
    for (const block of this.blocks) x = block.forward(x);
    return this.head.forward(x);
  }
}

const model = new Transformer();
const optimizer = new AdamW(model, { lr: 3e-3 });
/** Each sequence counts up by a fixed step from 1 to 8; the model must infer the step from earlier tokens. */
const tokenAt = (row: number, t: number) => (11 * row + (1 + (row % 8)) * t) % 64;
/** 8 sequences of 128 tokens, from token `first` of each: every rank makes all of it, and keeps its half of each sequence. */
const batch = (step: number, first: number) => {
  const tokens = Array.from({ length: 8 * 128 }, (_, i) => tokenAt(8 * step + Math.floor(i / 128), first + (i % 128)));
  return shard(ctx, fromArray(ctx, tokens, [8, 128]), 1);
};
for (let step = 0; step < 100; step++) {
  using loss = scope(() => {
    const [tokens, targets] = [batch(step, 0), batch(step, 1)];
    const loss = crossEntropy(ctx, model.forward(tokens), targets); // the mean over all ranks
    loss.backward();
    return loss;
  });
  reduceGradients(ctx, model); // now every rank has the gradient of the whole batch
  clipGradNorm(model, 1).dispose();
  optimizer.step();
  optimizer.zeroGrad();
  if (step % 50 === 49 && ctx.rank === 0) console.log(step + 1, await loss.item());
}
