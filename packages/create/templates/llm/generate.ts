import { init } from "@mosaic/attention";
import { loadModel } from "@mosaic/attention/models";

// npm run generate -- "He took his"
await using ctx = await init({ spSize: 2 });
using model = await loadModel(ctx, "build/model", { backend: "ring" });
const prompt = process.argv[2] ?? "He took his";
const tokens = [...Buffer.from(prompt)];
if (ctx.rank === 0) process.stdout.write(prompt);
// All ranks generate the same tokens. Each stores a part of the keys and values.
for await (const { token } of model.generate({ tokens, maxNewTokens: 120, eosTokenIds: [] })) {
  if (ctx.rank === 0) process.stdout.write(String.fromCharCode(token));
}
if (ctx.rank === 0) process.stdout.write("\n");
