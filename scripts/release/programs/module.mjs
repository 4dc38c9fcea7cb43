// JavaScript, an ES module.
import * as mosaic from "@mosaic/attention";

const ctx = await mosaic.init();
const attn = new mosaic.MultiAxisAttention(ctx, { embedDim: 32, numHeads: 4, attentionAxis: 1, backend: "ring" });
const values = await attn.forward(mosaic.randn(ctx, [2, 64, 32])).read();
const numFinite = values.filter(Number.isFinite).length;
if (values.length !== 4096 || numFinite !== 4096)
  throw new Error(`attention: expected 4096 finite values, received ${numFinite} finite of ${values.length}`);
await ctx.close();
console.log("4096 finite numbers");
