import { join } from "node:path";
import { type Context, init } from "@mosaic/attention";
import { stepsForBudget, multiplyAddsPerStep } from "./cost.ts";
import { readLearningCurve, throwIfFailed } from "@mosaic/program";
import type { CurvePoint } from "./curve.ts";
import { evaluate, computeRoutingMap, measureRouterRecall, type RoutingMap } from "./evaluation.ts";
import type { MethodResult, PlantedRun } from "./results.ts";
import { trainingFilePaths, loadTrainer } from "./run.ts";
import { formatMethodName, type Settings } from "./settings.ts";
import { type TrainingLaunchOptions, launchTraining } from "./training.ts";

/** Number of held-out sequences on which the trained model is evaluated. */
const HELD_OUT_SEQUENCES = 64;

/** Trains on planted repeats, and measures how many of them the router finds in held-out sequences. */
export async function trainOnPlantedRepeats(
  settings: Settings,
  launchOptions: TrainingLaunchOptions,
): Promise<PlantedRun> {
  const startTime = performance.now();
  throwIfFailed(await launchTraining(settings, launchOptions));
  const seconds = Math.round((performance.now() - startTime) / 1000);
  await using ctx: Context = await init({ seed: settings.seed });
  using trainer = await loadTrainer(ctx, settings);
  const { loss, recall } = await evaluate(trainer, HELD_OUT_SEQUENCES);
  const { chunks, topK, outputDir } = settings;
  return {
    settings: { ...settings, outputDir: "" },
    seconds,
    curve: readLearningCurve<CurvePoint>(trainingFilePaths(outputDir).curve).flatMap(({ step, loss, held }) =>
      held ? [{ step, loss, held }] : [],
    ),
    recall: recall!,
    pairs: (HELD_OUT_SEQUENCES * chunks) / 2,
    chance: topK / (chunks - 1),
    loss,
  };
}

/** The compared methods, in order of the bytes that they send. */
const comparedMethods: readonly Pick<Settings, "method" | "topK">[] = [
  { method: "local", topK: 0 },
  { method: "meta", topK: 1 },
  { method: "meta", topK: 2 },
  { method: "meta", topK: 4 },
  { method: "ring", topK: 0 },
];

/** topK of the method whose routing map is drawn. */
const MAP_TOP_K = 2;

/**
 * Trains each method on the masked genome with the multiply-adds that ring attention needs for `settings.steps` steps,
 * so that a method that attends to fewer keys runs more steps. Then measures the routers. `launchOptionsFor` returns
 * the launch options of the training with a given name.
 */
export async function compareMethods(
  settings: Settings,
  launchOptionsFor: (name: string) => TrainingLaunchOptions,
): Promise<{ methods: readonly MethodResult[]; map: RoutingMap }> {
  const multiplyAddBudget = settings.steps * multiplyAddsPerStep(0, { ...settings, method: "ring" });
  const methods: MethodResult[] = [];
  let map: RoutingMap | undefined;
  for (const comparedMethod of comparedMethods) {
    const name = formatMethodName(comparedMethod);
    const methodSettings = {
      ...settings,
      ...comparedMethod,
      outputDir: join(settings.outputDir, name.replace(" ", "-")),
    };
    const steps = stepsForBudget(multiplyAddBudget, methodSettings);
    const result = await trainMethod({ ...methodSettings, steps }, launchOptionsFor(name));
    if (comparedMethod.method !== "meta") {
      methods.push(result);
      continue;
    }
    await using ctx: Context = await init({ seed: settings.seed });
    using trainer = await loadTrainer(ctx, result.settings);
    methods.push({ ...result, recall: await measureRouterRecall(trainer) });
    if (comparedMethod.topK === MAP_TOP_K) map = await computeRoutingMap(ctx, result.settings, trainer.model);
  }
  return { methods, map: map! };
}

async function trainMethod(settings: Settings, launchOptions: TrainingLaunchOptions): Promise<MethodResult> {
  const startTime = performance.now();
  throwIfFailed(await launchTraining(settings, launchOptions));
  const seconds = Math.round((performance.now() - startTime) / 1000);
  const curve = readLearningCurve<CurvePoint>(trainingFilePaths(settings.outputDir).curve).filter(({ held }) => held);
  return { name: formatMethodName(settings), settings, seconds, curve };
}
