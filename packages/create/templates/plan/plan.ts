// Finds the best sharding of attention for a cluster, which need not exist: candidates run on symbolic ranks.
import { masks } from "@mosaic/attention";
import { auto } from "@mosaic/strategies/plan";

const strategy = auto({
  tokens: 65_536,
  numHeads: 32,
  numKvHeads: 8,
  headDim: 128,
  mask: masks.causal(),
  nodes: 2,
  gpusPerNode: 4,
  profile: "h100-ib400", // or a profile measured on your machines: npx mosaic-doctor --help
});
console.log(strategy.explanation);
