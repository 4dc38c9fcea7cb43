import { getEventListeners } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { constants, tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { help, formatMethodName, parseSettings, type Settings, UsageError } from "./settings.ts";
import { compareMethods, trainPlanted } from "./compare.ts";
import { writeResultsPage } from "./draw/results-page.ts";
import { Progress, throwIfFailed, TrainingError } from "@mosaic/program";
import { type PlantedRun, RESULTS, writeResult } from "./results.ts";
import { startTraining, type StepReport } from "./training.ts";

const usage = `Models of the genome of bacteriophage λ whose attention learns which chunks to attend to.

  npm run train   -w @mosaic/genome -- [options]   trains one model, on 4 ranks; restarts and resumes if a rank dies
  npm run compare -w @mosaic/genome -- [options]   local, meta (topK 1, 2, 4) and ring at equal compute → results/
  npm run planted -w @mosaic/genome -- [options]   repeats planted far apart, seeds 0, 1, 2 → results/
  npm run draw    -w @mosaic/genome                pictures of results/: SVG, PNG, one HTML page

${help}`;

const abort = new AbortController();
for (const name of ["SIGINT", "SIGTERM"] as const) {
  process.on(name, () => {
    // The launcher listens while it has ranks to end; else there is nothing to wait for.
    const hasRanks = getEventListeners(abort.signal, "abort").length > 0;
    abort.abort();
    if (!hasRanks) process.exit(128 + constants.signals[name]);
  });
}
const progress = new Progress(process.stderr);

process.exitCode = await main(process.argv.slice(2));

async function main([first = "--help", ...args]: readonly string[]): Promise<number> {
  const command = args.includes("--help") ? "--help" : first;
  const commands: Readonly<Record<string, (args: readonly string[]) => Promise<void> | void>> = {
    train: trainCommand,
    compare: compareCommand,
    planted: plantedCommand,
    draw: writeResultsPage,
    "--help": () => console.log(usage),
  };
  try {
    const run = Object.hasOwn(commands, command) ? commands[command] : undefined;
    if (!run) throw new UsageError(`expected one of ${Object.keys(commands).join(", ")}; received "${command}"`);
    await run(args);
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

/** Shows each step of a training of that name. */
function reportSteps(name: string): (report: StepReport) => void {
  const show = progress.begin();
  return ({ step, totalSteps, loss }) =>
    show(step / totalSteps, `${name}: step ${step} of ${totalSteps}, loss ${loss.toFixed(3)}`);
}

async function trainCommand(args: readonly string[]): Promise<void> {
  const settings = parseSettings(args);
  const outputDir = resolve(settings.outputDir);
  const name = `${settings.task}, ${formatMethodName(settings)}, ${settings.ranks} ranks`;
  throwIfFailed(await startTraining({ ...settings, outputDir }, { progress: reportSteps(name), abort: abort.signal }));
  progress.end();
  console.log(`curve.jsonl and model.safetensors are in ${outputDir}`);
}

async function compareCommand(args: readonly string[]): Promise<void> {
  const settings = parseSettings(args, { task: "genome", method: "meta", "top-k": "2", "output-dir": "" });
  const { methods, map } = await withTemporaryDirectory((outputDir) => {
    return compareMethods({ ...settings, outputDir }, (name) => ({ progress: reportSteps(name), abort: abort.signal }));
  });
  writeResult(new URL("genome.jsonl", RESULTS), {
    ...createOrigin("compare", args),
    methods: methods.map(withoutOutputDir),
    map,
  });
  progress.end();
  for (const { name, curve, recall } of methods) {
    const { step, bytes, held } = curve.at(-1)!;
    const found = recall ? `, recall ${recall.recall.toFixed(3)} where chance is ${recall.chance.toFixed(3)}` : "";
    console.log(`${name}: ${step} steps, loss ${held!.loss.toFixed(4)}, ${(bytes / 1e6).toFixed(1)} MB${found}`);
  }
}

async function plantedCommand(args: readonly string[]): Promise<void> {
  const runs: PlantedRun[] = [];
  const first = parseSettings(args, { task: "planted", method: "meta", "output-dir": "" });
  for (const seed of [0, 1, 2].map((more) => first.seed + more)) {
    const own = (outputDir: string): Settings => ({ ...first, seed, outputDir });
    const start = { progress: reportSteps(`planted, seed ${seed}`), abort: abort.signal };
    const run = await withTemporaryDirectory((outputDir) => trainPlanted(own(outputDir), start));
    progress.end();
    console.log(
      `seed ${seed}: recall@${first.topK} ${run.recall.toFixed(3)} of ${run.pairs} pairs (chance ${run.chance.toFixed(3)})`,
    );
    runs.push(withoutOutputDir(run));
    writeResult(new URL("planted.jsonl", RESULTS), { ...createOrigin("planted", args), runs });
  }
}

/** Without the output directory, which was temporary. */
function withoutOutputDir<T extends { readonly settings: Settings }>(result: T): T {
  return { ...result, settings: { ...result.settings, outputDir: "" } };
}

function createOrigin(command: string, args: readonly string[]): { date: string; command: string } {
  const options = args.length > 0 ? ` -- ${args.join(" ")}` : "";
  return { date: new Date().toISOString().slice(0, 10), command: `npm run ${command} -w @mosaic/genome${options}` };
}

async function withTemporaryDirectory<T>(body: (directory: string) => Promise<T>): Promise<T> {
  const directory = mkdtempSync(join(tmpdir(), "mosaic-genome-"));
  const remove = (): void => rmSync(directory, { recursive: true, force: true });
  process.once("exit", remove);
  try {
    return await body(directory);
  } finally {
    process.off("exit", remove);
    remove();
  }
}
