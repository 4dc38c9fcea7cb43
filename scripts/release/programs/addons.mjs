// Loads every installed addon, and computes attention on two ranks that communicate over shared memory.
import { createRequire } from "node:module";
import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { cpu, MultiAxisAttention, randn, world } from "@mosaic/attention";

const require = createRequire(import.meta.url);
const platform = `${process.platform}-${process.arch}`;
const loadedAddons = [];
for (const name of ["collectives-nccl", "collectives-ucx", "kernels-cuda"]) {
  const manifest = join(dirname(require.resolve("@mosaic/attention/package.json")), "..", name, "package.json");
  if (!existsSync(manifest)) continue;
  require(join(dirname(manifest), "prebuilds", platform, `mosaic_${name.replaceAll("-", "_")}.node`));
  loadedAddons.push(name);
}
const contexts = await world(2, { device: () => cpu({ threads: 1 }) });
const outputs = contexts.map((ctx) => {
  const attn = new MultiAxisAttention(ctx, { embedDim: 32, numHeads: 4, attentionAxis: 1, backend: "ring" });
  return attn.forward(randn(ctx, [1, 32, 32]));
});
for (const out of outputs) {
  const values = await out.read();
  if (!values.every(Number.isFinite))
    throw new Error(`attention: expected finite values, received ${values.find((x) => !Number.isFinite(x))}`);
}
await Promise.all(contexts.map((ctx) => ctx.close()));
const { glibcVersionRuntime } = process.report.getReport().header;
console.log(
  `glibc ${glibcVersionRuntime}, Node ${process.versions.node}, ${platform}: attention of two ranks; loaded ${loadedAddons.join(", ")}`,
);
