// Evaluates the weights of this package on real tables, compared with logistic regression and nearest neighbors.
import { init } from "@mosaic/attention";
import { evaluationSets } from "./datasets.ts";
import { type Comparison, compareMethods, meanGain, mean } from "./evaluate.ts";
import { parseCommandLine, parseInteger } from "./arguments.ts";
import { defaultEnsemble } from "./predict.ts";
import { defaultWeightsPath, loadModel } from "./weights.ts";

const usage = `Evaluates the weights on real tables, compared with logistic regression and nearest neighbors.

  node dist/main.js [options]

  --weights FILE   weights to evaluate (weights.safetensors of this package)
  --seeds N        number of random halves of each table, with the seeds 0 to N - 1 (5)
  --ensemble N     number of members of the ensemble (${defaultEnsemble.size})
  --json           prints one JSON object per table
  -h, --help       shows this help`;
const { weights, seeds, ensemble, isJson } = parseCommandLine(
  usage,
  {
    weights: { type: "string", default: defaultWeightsPath },
    seeds: { type: "string", default: "5" },
    ensemble: { type: "string", default: String(defaultEnsemble.size) },
    json: { type: "boolean", default: false },
  },
  (values) => ({
    weights: values.weights,
    seeds: Array.from({ length: parseInteger("--seeds", values.seeds, [1, 1000]) }, (_, seed) => seed),
    ensemble: { ...defaultEnsemble, size: parseInteger("--ensemble", values.ensemble, [1, 1000]) },
    isJson: values.json,
  }),
);

await using ctx = await init({});
using model = await loadModel(ctx, weights);
const comparisons: Comparison[] = [];
for (const name of evaluationSets) comparisons.push(await compareMethods(ctx, model, { name, seeds, ensemble }));
if (isJson) for (const comparison of comparisons) console.log(JSON.stringify(comparison));
else {
  console.log(`ROC AUC, mean and range over seeds ${seeds.join(", ")}\n`);
  console.log(
    `${"table".padEnd(10)}${"rows".padStart(6)}${"known".padStart(7)}   model                 logistic              15 nearest neighbors`,
  );
  for (const comparison of comparisons) {
    const { name, rows, knownRows, model: modelScores, logistic, neighbors } = comparison;
    const scoresText = [modelScores, logistic, neighbors].map((scores) => describeScores(scores).padEnd(22)).join("");
    console.log(`${name.padEnd(10)}${String(rows).padStart(6)}${String(knownRows).padStart(7)}   ${scoresText}`);
  }
  const minGain = Math.min(...comparisons.map(meanGain));
  console.log(
    `\nMean gain in ROC AUC over the better baseline: at least ${minGain >= 0 ? "+" : "−"}${Math.abs(minGain).toFixed(4)} on every table.`,
  );
}

function describeScores(scores: readonly number[]): string {
  return `${mean(scores).toFixed(4)} ${Math.min(...scores).toFixed(3)}–${Math.max(...scores).toFixed(3)}`;
}
