// TypeScript, an ES module. Type errors must be reported.
import { attention, init, local, masks, randn, type Tensor } from "@mosaic/attention";
import { crossEntropy, Embedding } from "@mosaic/attention/nn";

await using ctx = await init();
const q: Tensor = randn(ctx, [1, 2, 16, 8]);
const out = attention(ctx, q, q, q, { backend: local(), mask: masks.causal() });
// @ts-expect-error a tensor is no number
const wrong: number = out;
const embedding = new Embedding(ctx, 16, 8);
void [wrong, embedding, crossEntropy];
console.log(`${(await out.read()).length} numbers`);
