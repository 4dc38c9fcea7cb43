// Program of each rank. Its arguments are a command and its settings as JSON. The launcher sets RANK and WORLD_SIZE.
// Rank 0 prints lines of JSON.
import { init } from "@mosaic/attention";
import { generateText } from "./generate-text.ts";
import { measureNeedles } from "./needles/measure-needles.ts";
import { measurePerplexity } from "./perplexity.ts";
import { serveModel, type ServeRankSettings } from "./serve/serve-rank.ts";
import { createTrainMesh, type ModelSettings, type TrainSettings } from "./settings.ts";
import { trainModel } from "./train-model.ts";

const [command, settingsJson] = process.argv.slice(2) as [string, string];
// Only the settings of a training have numbers of data-parallel ranks and replicas.
const settings = { dp: 1, replicas: 1, ...(JSON.parse(settingsJson) as object) } as TrainSettings &
  ModelSettings &
  ServeRankSettings;
await using ctx = await init({ seed: settings.seed, mesh: createTrainMesh(settings) });

/** Reports to the program that started the ranks. */
function report(line: object): void {
  if (ctx.rank === 0) console.log(JSON.stringify(line));
}

switch (command) {
  case "train":
    await trainModel(ctx, settings, report);
    break;
  case "perplexity":
    report({ step: 0, result: await measurePerplexity(ctx, settings, (share) => report({ step: 0, share })) });
    break;
  case "needle":
    report({ step: 0, result: await measureNeedles(ctx, settings, (share) => report({ step: 0, share })) });
    break;
  case "serve":
    await serveModel(ctx, settings);
    break;
  default:
    await generateText(ctx, settings, (piece) => report({ step: 0, ...piece }));
}
