// TypeScript that requires ES modules.
import mosaic = require("@mosaic/attention");

async function main(): Promise<void> {
  const ctx: mosaic.Context = await mosaic.init();
  const x = mosaic.fromArray(ctx, [1, 2, 3, 4], [2, 2]);
  console.log((await x.matmul(x).read()).join());
  await ctx.close();
}

void main();
