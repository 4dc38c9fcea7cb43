import { getEventListeners } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { constants, tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { help, formatMethodName, readSettings, type Settings, UsageError } from "./settings.ts";
import { compareMethods, trainPlanted } from "./compare.ts";
import { writeResultsPage } from "./draw/results-page.ts";
import { type PlantedRun, RESULTS, writeResult } from "./results.ts";
import { throwIfFailed, startTraining, type StepReport, TrainingError } from "./training.ts";

/** How far a training is: one line that renews itself on a terminal, a line for each tenth elsewhere. */
class Progress {
  readonly #out: NodeJS.WriteStream;
  #startTime = 0;
  #lastShownTenth = -1;

  constructor(out: NodeJS.WriteStream) {
    this.#out = out;
  }

  /** A new piece of work begins; returns what to call with the share of it that is done, and in words. */
  begin(): (share: number, words: string) => void {
    this.#startTime = performance.now();
    this.#lastShownTenth = -1;
    return (share, words) => this.#show(share, words);
  }

  /** Clears the line, so that what is printed next stands alone. */
  end(): void {
    if (this.#out.isTTY) this.#out.write("\r\u001b[2K");
  }

  #show(share: number, words: string): void {
    const tenth = Math.floor(share * 10);
    if (!this.#out.isTTY && tenth === this.#lastShownTenth) return;
    this.#lastShownTenth = tenth;
    const elapsed = (performance.now() - this.#startTime) / 1000;
    const rest = share < 1 ? `, about ${Math.ceil((elapsed * (1 - share)) / share)} s to go` : "";
    const bar = "█".repeat(Math.round(share * 20)).padEnd(20, "░");
    const line = `${bar} ${words}, ${elapsed.toFixed(0)} s${rest}`;
    this.#out.write(this.#out.isTTY ? `\r\u001b[2K${line}` : `${line}\n`);
  }
}

const usage = `Models that read bacteriophage λ, and learn where to look in it.

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
  const settings = readSettings(args);
  const folder = resolve(settings.folder);
  const name = `${settings.task}, ${formatMethodName(settings)}, ${settings.ranks} ranks`;
  throwIfFailed(await startTraining({ ...settings, folder }, { progress: reportSteps(name), abort: abort.signal }));
  progress.end();
  console.log(`curve.jsonl and model.safetensors are in ${folder}`);
}

async function compareCommand(args: readonly string[]): Promise<void> {
  const settings = readSettings(args, { task: "genome", method: "meta", "top-k": "2", folder: "" });
  const { methods, map } = await withTemporaryFolder((folder) => {
    return compareMethods({ ...settings, folder }, (name) => ({ progress: reportSteps(name), abort: abort.signal }));
  });
  writeResult(new URL("genome.jsonl", RESULTS), {
    ...createOrigin("compare", args),
    methods: methods.map(withoutFolder),
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
  const first = readSettings(args, { task: "planted", method: "meta", folder: "" });
  for (const seed of [0, 1, 2].map((more) => first.seed + more)) {
    const own = (folder: string): Settings => ({ ...first, seed, folder });
    const start = { progress: reportSteps(`planted, seed ${seed}`), abort: abort.signal };
    const run = await withTemporaryFolder((folder) => trainPlanted(own(folder), start));
    progress.end();
    console.log(
      `seed ${seed}: recall@${first.topK} ${run.recall.toFixed(3)} of ${run.pairs} pairs (chance ${run.chance.toFixed(3)})`,
    );
    runs.push(withoutFolder(run));
    writeResult(new URL("planted.jsonl", RESULTS), { ...createOrigin("planted", args), runs });
  }
}

/** Without the folder, which is gone. */
function withoutFolder<T extends { readonly settings: Settings }>(result: T): T {
  return { ...result, settings: { ...result.settings, folder: "" } };
}

function createOrigin(command: string, args: readonly string[]): { date: string; command: string } {
  const options = args.length > 0 ? ` -- ${args.join(" ")}` : "";
  return { date: new Date().toISOString().slice(0, 10), command: `npm run ${command} -w @mosaic/genome${options}` };
}

async function withTemporaryFolder<T>(body: (folder: string) => Promise<T>): Promise<T> {
  const folder = mkdtempSync(join(tmpdir(), "mosaic-genome-"));
  const remove = (): void => rmSync(folder, { recursive: true, force: true });
  process.once("exit", remove);
  try {
    return await body(folder);
  } finally {
    process.off("exit", remove);
    remove();
  }
}
