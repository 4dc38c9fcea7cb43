import { mkdirSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import {
  abortOnSignals,
  Progress,
  type RankLaunchOptions,
  readLearningCurve,
  runCommand,
  launchRanks,
  throwIfFailed,
} from "@mosaic/program";
import { drawLossCurve, drawNeedles, drawPerplexity } from "./draw/pictures.ts";
import { checkPrompt } from "./generate-text.ts";
import { folderFilePaths, prepareFolder, readModelConfig } from "./model-folder.ts";
import type { NeedleResult } from "./needles/measure-needles.ts";
import type { PerplexityResult } from "./perplexity.ts";
import { isLoopback } from "./serve/access.ts";
import { serve as startServer } from "./serve/serve.ts";
import { help, type ModelSettings, parseModelSettings, parseServeSettings, parseTrainSettings } from "./settings.ts";
import type { LossPoint, TrainReport } from "./train-model.ts";

const usage = `Trains, evaluates and serves a small language model of the King James Version on several ranks.

  npm run llm -- train       trains a tokenizer and a model, saved in Hugging Face format; resumes an interrupted run
  npm run llm -- perplexity  evaluates the loss on held-out books by position and by context length
  npm run llm -- needle      evaluates how often the model retrieves a fact, by depth and text length
  npm run llm -- generate    generates text from a prompt
  npm run llm -- serve       runs an HTTP server with OpenAI's API and a chat page

${help}`;

const rankEntry = new URL("../dist/rank.js", import.meta.url);
const abortSignal = abortOnSignals();
const progress = new Progress(process.stderr);
const commands = { train, perplexity: runPerplexity, needle: runNeedle, generate, serve };

try {
  process.exitCode = await runCommand(process.argv.slice(2), usage, commands);
} finally {
  progress.end();
}

/** Runs a command on ranks, and calls `onLine` with each line of JSON of rank 0. */
async function runRanks<Line>(
  command: string,
  settings: { readonly ranks: number },
  onLine: (line: Line) => void,
  options: RankLaunchOptions<Line> = {},
): Promise<void> {
  const program = { entry: rankEntry, args: [command, JSON.stringify(settings)], ranks: settings.ranks };
  throwIfFailed(await launchRanks<Line>(program, { abort: abortSignal, onReport: onLine, ...options }));
}

async function train(args: readonly string[]): Promise<void> {
  const trainSettings = parseTrainSettings(args);
  const settings = { ...trainSettings, out: resolve(trainSettings.out) };
  prepareFolder(settings.out, settings);
  const showProgress = progress.begin();
  let lastReport: TrainReport | undefined;
  await runRanks<TrainReport>("train", settings, (report) => {
    lastReport = report;
    showProgress(Math.min(1, report.share), `step ${report.step}, loss ${report.loss.toFixed(3)}`);
  });
  progress.end();
  const { curve: curvePath, picture: picturePath } = folderFilePaths(settings.out);
  const points = readLearningCurve<LossPoint>(curvePath);
  const lastPoint = points.at(-1);
  if (!lastPoint) {
    console.log(`training already completed, but ${curvePath} has no steps to draw; the model is in ${settings.out}`);
    return;
  }
  writeFileSync(picturePath, drawLossCurve(points, settings));
  const heldOutLoss = points.findLast((point) => point.heldOut !== undefined)?.heldOut;
  const { step, loss } = lastPoint;
  console.log(
    `${lastReport ? "trained" : "training already completed"}: step ${step}, loss ${loss.toFixed(3)}, held-out loss ${heldOutLoss?.toFixed(3)}; the model is in ${settings.out}`,
  );
}

/** Parses the settings of a trained model, with absolute paths. */
function parseSettings(args: readonly string[]): ModelSettings {
  const settings = parseModelSettings(args);
  const model = resolve(settings.model);
  return { ...settings, model, out: settings.out === "" ? model : resolve(settings.out) };
}

/** Runs a measurement on ranks, and writes its result and its picture. */
async function runMeasurement<Result>(
  command: string,
  settings: ModelSettings,
  drawResult: (result: Result) => string,
): Promise<Result> {
  readModelConfig(settings.model);
  const showProgress = progress.begin();
  let measurement: Result | undefined;
  await runRanks<{ readonly share?: number; readonly result?: Result }>(command, settings, ({ share, result }) => {
    if (share !== undefined) showProgress(share, command);
    measurement = result ?? measurement;
  });
  progress.end();
  mkdirSync(settings.out, { recursive: true });
  writeFileSync(join(settings.out, `${command}.json`), `${JSON.stringify(measurement, null, 2)}\n`);
  writeFileSync(join(settings.out, `${command}.svg`), drawResult(measurement!));
  return measurement!;
}

async function runPerplexity(args: readonly string[]): Promise<void> {
  const settings = parseSettings(args);
  const result = await runMeasurement<PerplexityResult>("perplexity", settings, drawPerplexity);
  console.log(`${result.texts} texts of ${result.length} tokens of held-out books`);
  for (const { from, to, loss } of result.positions) {
    console.log(
      `  positions ${String(from).padStart(5)} to ${String(to - 1).padStart(5)}: loss ${loss.toFixed(3)}, perplexity ${Math.exp(loss).toFixed(1)}`,
    );
  }
  for (const { context, loss } of result.contexts) {
    console.log(
      `  context of ${String(context).padStart(5)} tokens, same targets: loss ${loss.toFixed(3)}, perplexity ${Math.exp(loss).toFixed(1)}`,
    );
  }
}

async function runNeedle(args: readonly string[]): Promise<void> {
  const settings = parseSettings(args);
  const result = await runMeasurement<NeedleResult>("needle", settings, drawNeedles);
  const { cells, trials, facts, chance, trainedLength } = result;
  console.log(`accuracy over ${trials} texts; chance level ${chance.toFixed(3)}, one of ${facts} facts`);
  for (const length of new Set(cells.map((cell) => cell.length))) {
    const row = cells.filter((cell) => cell.length === length);
    const accuracyText = row.map(({ depth, accuracy }) => `depth ${depth}: ${accuracy.toFixed(2)}`).join(", ");
    const meanAccuracy = row.reduce((sum, { accuracy }) => sum + accuracy, 0) / row.length;
    const note = length > trainedLength ? ", longer than in training" : "";
    console.log(`  ${String(length).padStart(5)} tokens: ${meanAccuracy.toFixed(3)} (${accuracyText}${note})`);
  }
}

async function generate(args: readonly string[]): Promise<void> {
  const settings = parseSettings(args);
  await checkPrompt(settings);
  process.stdout.write(settings.prompt);
  await runRanks<{ readonly text: string }>("generate", settings, ({ text }) => process.stdout.write(text), {
    maxRestarts: 0,
  });
  process.stdout.write("\n");
}

async function serve(args: readonly string[]): Promise<void> {
  const serveSettings = parseServeSettings(args);
  const key = serveSettings.key === "" ? (process.env["MOSAIC_LLM_KEY"] ?? "") : serveSettings.key;
  const settings = { ...serveSettings, key, model: resolve(serveSettings.model) };
  const server = await startServer(settings, {
    entry: rankEntry,
    promptWorker: new URL("../dist/prompt-worker.js", import.meta.url),
    page: new URL("../page/chat.html", import.meta.url),
    onReady: () => console.log(`serving ${settings.model} on ${settings.ranks} ranks at ${server.url}`),
  });
  if (key === "" && !isLoopback(settings.host)) {
    console.error(`${server.url} accepts requests from the network without a key; set --key`);
  }
  // After the first signal, running texts are completed. A second signal kills the server.
  abortSignal.addEventListener("abort", () => {
    server.stop();
    for (const name of ["SIGINT", "SIGTERM"] as const) process.on(name, () => server.kill());
  });
  await server.completion;
}
