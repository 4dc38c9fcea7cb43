import { mkdirSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import {
  Progress,
  type RankLaunchOptions,
  readLearningCurve,
  startRanks,
  throwIfFailed,
  TrainingError,
} from "@mosaic/program";
import { drawLossCurve, drawNeedles, drawPerplexity } from "./draw/pictures.ts";
import { folderFiles, prepareFolder } from "./model-folder.ts";
import type { NeedleResult } from "./needles/measure-needles.ts";
import type { PerplexityResult } from "./perplexity.ts";
import { help, type ModelSettings, parseModelSettings, parseTrainSettings, UsageError } from "./settings.ts";
import type { LossPoint, TrainReport } from "./train-model.ts";

const usage = `A small language model on the King James Version: trained, measured and continued on several ranks.

  npm run llm -- train       tokenizer, training, Hugging Face folder; continues what is there
  npm run llm -- perplexity  loss of held-out books by position, and by how much of the text a model is given
  npm run llm -- needle      how often a model finds a fact, by its depth and the text's length
  npm run llm -- generate    continues a prompt

${help}`;

const abort = new AbortController();
for (const name of ["SIGINT", "SIGTERM"] as const) process.on(name, () => abort.abort());
const progress = new Progress(process.stderr);
process.exitCode = await main(process.argv.slice(2));

async function main([command = "--help", ...args]: readonly string[]): Promise<number> {
  const commands: Readonly<Record<string, (args: readonly string[]) => Promise<void> | void>> = {
    train,
    perplexity,
    needle,
    generate,
    "--help": () => console.log(usage),
  };
  try {
    const run = Object.hasOwn(commands, command) ? commands[command] : undefined;
    if (!run) throw new UsageError(`expected one of ${Object.keys(commands).join(", ")}; received "${command}"`);
    await (args.includes("--help") ? console.log(usage) : run(args));
    return 0;
  } catch (error) {
    if (error instanceof UsageError) console.error(`${error.message}\n\n${usage}`);
    else if (error instanceof TrainingError) console.error(error.message);
    else throw error;
    return error instanceof UsageError ? 2 : error.exitCode;
  } finally {
    progress.end();
  }
}

/** Runs a command on ranks; `onLine` is called with each line of JSON of rank 0. */
async function runRanks<Line>(
  command: string,
  settings: { readonly ranks: number },
  onLine: (line: Line) => void,
  options: RankLaunchOptions<Line> = {},
): Promise<void> {
  const entry = new URL("../dist/rank.js", import.meta.url);
  const program = { entry, args: [command, JSON.stringify(settings)], ranks: settings.ranks };
  throwIfFailed(await startRanks<Line>(program, { abort: abort.signal, progress: onLine, ...options }));
}

async function train(args: readonly string[]): Promise<void> {
  const given = parseTrainSettings(args);
  const settings = { ...given, out: resolve(given.out) };
  prepareFolder(settings.out, settings);
  const show = progress.begin();
  let last: TrainReport | undefined;
  await runRanks<TrainReport>("train", settings, (report) => {
    last = report;
    show(Math.min(1, report.share), `step ${report.step}, loss ${report.loss.toFixed(3)}`);
  });
  progress.end();
  const { curve, picture } = folderFiles(settings.out);
  const points = readLearningCurve<LossPoint>(curve);
  writeFileSync(picture, drawLossCurve(points, settings));
  const heldOut = points.findLast((point) => point.heldOut !== undefined)?.heldOut;
  const { step, loss } = points.at(-1)!;
  console.log(
    `${last ? "trained" : "nothing left to train"}: step ${step}, loss ${loss.toFixed(3)}, held-out ${heldOut?.toFixed(3)}; the model is in ${settings.out}`,
  );
}

/** The settings of a trained model, with whole paths. */
function modelSettings(args: readonly string[]): ModelSettings {
  const settings = parseModelSettings(args);
  const model = resolve(settings.model);
  return { ...settings, model, out: settings.out === "" ? model : resolve(settings.out) };
}

/** A measurement on ranks, written beside its picture. */
async function measure<Result>(
  command: string,
  settings: ModelSettings,
  draw: (result: Result) => string,
): Promise<Result> {
  const show = progress.begin();
  let found: Result | undefined;
  await runRanks<{ readonly share?: number; readonly result?: Result }>(command, settings, ({ share, result }) => {
    if (share !== undefined) show(share, command);
    found = result ?? found;
  });
  progress.end();
  mkdirSync(settings.out, { recursive: true });
  writeFileSync(join(settings.out, `${command}.json`), `${JSON.stringify(found, null, 2)}\n`);
  writeFileSync(join(settings.out, `${command}.svg`), draw(found!));
  return found!;
}

async function perplexity(args: readonly string[]): Promise<void> {
  const settings = modelSettings(args);
  const result = await measure<PerplexityResult>("perplexity", settings, drawPerplexity);
  console.log(`${result.texts} texts of ${result.length} tokens of held-out books`);
  for (const { from, to, loss } of result.positions) {
    console.log(
      `  positions ${String(from).padStart(5)} to ${String(to - 1).padStart(5)}: loss ${loss.toFixed(3)}, perplexity ${Math.exp(loss).toFixed(1)}`,
    );
  }
  for (const { context, loss } of result.contexts) {
    console.log(
      `  after ${String(context).padStart(5)} tokens, the same tokens: loss ${loss.toFixed(3)}, perplexity ${Math.exp(loss).toFixed(1)}`,
    );
  }
}

async function needle(args: readonly string[]): Promise<void> {
  const settings = modelSettings(args);
  const result = await measure<NeedleResult>("needle", settings, drawNeedles);
  const { cells, trials, facts, chance, trainedLength } = result;
  console.log(`share of ${trials} texts; one of ${facts} facts is asked for, so chance is ${chance.toFixed(3)}`);
  for (const length of new Set(cells.map((cell) => cell.length))) {
    const row = cells.filter((cell) => cell.length === length);
    const shown = row.map(({ depth, accuracy }) => `depth ${depth}: ${accuracy.toFixed(2)}`).join(", ");
    const mean = row.reduce((sum, { accuracy }) => sum + accuracy, 0) / row.length;
    const note = length > trainedLength ? ", longer than in the training" : "";
    console.log(`  ${String(length).padStart(5)} tokens: ${mean.toFixed(3)} (${shown}${note})`);
  }
}

async function generate(args: readonly string[]): Promise<void> {
  const settings = modelSettings(args);
  process.stdout.write(settings.prompt);
  await runRanks<{ readonly text: string }>("generate", settings, ({ text }) => process.stdout.write(text), {
    maxRestarts: 0,
  });
  process.stdout.write("\n");
}
