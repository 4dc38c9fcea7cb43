import { resolve } from "node:path";
import { checkNoOptions, help, formatMethodName, parseSettings, type Settings } from "./settings.ts";
import { compareMethods, trainOnPlantedRepeats } from "./compare.ts";
import { writeResultsPage } from "./draw/results-page.ts";
import { abortOnSignals, Progress, runCommand, throwIfFailed, withTemporaryDirectory } from "@mosaic/program";
import { type PlantedRun, RESULTS_URL, writeResult } from "./results.ts";
import { launchTraining, type StepReport } from "./training.ts";

const usage = `Trains models of the genome of bacteriophage λ with learned selection of the attended chunks.

  npm run train   -w @mosaic/genome -- [options]   trains one model on 4 ranks; restarts and resumes if a rank fails
  npm run compare -w @mosaic/genome -- [options]   compares local, meta (topK 1, 2, 4) and ring at equal compute → results/
  npm run planted -w @mosaic/genome -- [options]   trains on repeats planted far apart, seeds 0, 1, 2 → results/
  npm run draw    -w @mosaic/genome                draws results/ as SVG, PNG and one HTML page

${help}`;

const abortSignal = abortOnSignals();
const progress = new Progress(process.stderr);
const commands = { train, compare, planted: trainPlantedRuns, draw };

try {
  process.exitCode = await runCommand(process.argv.slice(2), usage, commands);
} finally {
  progress.end();
}

/** Returns a function that shows each step of the training named `name`. */
function createStepReporter(name: string): (report: StepReport) => void {
  const showProgress = progress.begin();
  return ({ step, totalSteps, loss }) =>
    showProgress(step / totalSteps, `${name}: step ${step} of ${totalSteps}, loss ${loss.toFixed(3)}`);
}

async function train(args: readonly string[]): Promise<void> {
  const settings = parseSettings(args);
  const outputDir = resolve(settings.outputDir);
  const name = `${settings.task}, ${formatMethodName(settings)}, ${settings.ranks} ranks`;
  throwIfFailed(
    await launchTraining({ ...settings, outputDir }, { onReport: createStepReporter(name), abort: abortSignal }),
  );
  progress.end();
  console.log(`curve.jsonl and model.safetensors are in ${outputDir}`);
}

async function compare(args: readonly string[]): Promise<void> {
  const settings = parseSettings(args, { task: "genome", method: "meta", "top-k": "2", "output-dir": "" });
  const { methods, map } = await withTemporaryDirectory("mosaic-genome-", (outputDir) => {
    return compareMethods({ ...settings, outputDir }, (name) => ({
      onReport: createStepReporter(name),
      abort: abortSignal,
    }));
  });
  writeResult(new URL("genome.jsonl", RESULTS_URL), {
    ...createOrigin("compare", args),
    methods: methods.map(omitOutputDir),
    map,
  });
  progress.end();
  for (const { name, curve, recall } of methods) {
    const { step, bytes, held } = curve.at(-1)!;
    const recallText = recall ? `, recall ${recall.recall.toFixed(3)} (chance ${recall.chance.toFixed(3)})` : "";
    console.log(
      `${name}: ${step} steps, held-out loss ${held!.loss.toFixed(4)}, ${(bytes / 1e6).toFixed(1)} MB sent${recallText}`,
    );
  }
}

async function trainPlantedRuns(args: readonly string[]): Promise<void> {
  const runs: PlantedRun[] = [];
  const firstSettings = parseSettings(args, { task: "planted", method: "meta", "output-dir": "" });
  for (const seed of [0, 1, 2].map((seedOffset) => firstSettings.seed + seedOffset)) {
    const createSeedSettings = (outputDir: string): Settings => ({ ...firstSettings, seed, outputDir });
    const launchOptions = { onReport: createStepReporter(`planted, seed ${seed}`), abort: abortSignal };
    const plantedRun = await withTemporaryDirectory("mosaic-genome-", (outputDir) =>
      trainOnPlantedRepeats(createSeedSettings(outputDir), launchOptions),
    );
    progress.end();
    console.log(
      `seed ${seed}: recall@${firstSettings.topK} ${plantedRun.recall.toFixed(3)} of ${plantedRun.pairs} pairs (chance ${plantedRun.chance.toFixed(3)})`,
    );
    runs.push(omitOutputDir(plantedRun));
    writeResult(new URL("planted.jsonl", RESULTS_URL), { ...createOrigin("planted", args), runs });
  }
}

function draw(args: readonly string[]): void {
  checkNoOptions("draw", args);
  writeResultsPage();
}

/** Removes the output directory from the settings, because it was temporary. */
function omitOutputDir<T extends { readonly settings: Settings }>(result: T): T {
  return { ...result, settings: { ...result.settings, outputDir: "" } };
}

function createOrigin(command: string, args: readonly string[]): { date: string; command: string } {
  const options = args.length > 0 ? ` -- ${args.join(" ")}` : "";
  return { date: new Date().toISOString().slice(0, 10), command: `npm run ${command} -w @mosaic/genome${options}` };
}
