import { init } from "@mosaic/attention";
import { expect, it } from "vitest";
import { type DatasetName, evaluationSets } from "../src/datasets.ts";
import { compareMethods, meanGain, mean } from "../src/evaluate.ts";
import { loadModel } from "../src/weights.ts";

it.each<DatasetName>([...evaluationSets])(
  "predicts %s with a gain over the better baseline of at least −0.02",
  async (name) => {
    await using ctx = await init({ rank: 0, worldSize: 1 });
    using model = await loadModel(ctx);
    const comparison = await compareMethods(ctx, model, { name, seeds: [0, 1, 2], ensemble: { size: 2, seed: 0 } });
    expect(mean(comparison.model)).toBeGreaterThan(0.7);
    expect(meanGain(comparison)).toBeGreaterThan(-0.02);
  },
);
