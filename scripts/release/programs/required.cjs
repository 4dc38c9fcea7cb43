// JavaScript that requires ES modules.
const mosaic = require("@mosaic/attention");
const { AdamW } = require("@mosaic/attention/nn");

async function main() {
  const ctx = await mosaic.init();
  const linear = new mosaic.Linear(ctx, 8, 1);
  const optimizer = new AdamW(linear, { lr: 0.1 });
  const x = mosaic.fromArray(ctx, [1, 2, 3, 4, 5, 6, 7, 8], [1, 8]);
  const before = await linear.forward(x).item();
  linear.forward(x).sum().backward();
  optimizer.step();
  const after = await linear.forward(x).item();
  if (!(after < before)) throw new Error(`a step from ${before} to ${after}`);
  await ctx.close();
  console.log("a step downhill");
}

void main();
