// JavaScript, an ES module.
import * as mosaic from "@mosaic/attention";

const ctx = await mosaic.init();
const attn = new mosaic.MultiAxisAttention(ctx, { embedDim: 32, numHeads: 4, attentionAxis: 1, backend: "ring" });
const values = await attn.forward(mosaic.randn(ctx, [2, 64, 32])).read();
if (values.length !== 4096 || !values.every(Number.isFinite)) throw new Error("attention returned non-finite values");
await ctx.close();
console.log("4096 finite numbers");
