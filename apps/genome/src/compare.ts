import { join } from "node:path";
import { type Context, init } from "@mosaic/attention";
import { stepsWithin, stepMultiplyAdds } from "./cost.ts";
import { readCurve } from "./curve.ts";
import { evaluate } from "./recall.ts";
import type { MethodResult, PlantedRun } from "./results.ts";
import { trainingFiles, openTrained } from "./run.ts";
import { nameOf, type Settings } from "./settings.ts";
import { type RoutingMap, mapRouting, measureRouterRecall } from "./survey.ts";
import { throwIfFailed, type TrainingLaunchOptions, startTraining } from "./training.ts";

/** Held-out sequences that the trained model is evaluated on. */
const SEQUENCES = 64;

/** Trains on planted repeats, and counts how many the router finds in held-out sequences. */
export async function trainPlanted(settings: Settings, start: TrainingLaunchOptions): Promise<PlantedRun> {
  const began = performance.now();
  throwIfFailed(await startTraining(settings, start));
  const seconds = Math.round((performance.now() - began) / 1000);
  await using ctx: Context = await init({ seed: settings.seed });
  using trainer = await openTrained(ctx, settings);
  const { loss, recall } = await evaluate(trainer, SEQUENCES);
  const { chunks, topK, folder } = settings;
  return {
    settings: { ...settings, folder: "" },
    seconds,
    curve: readCurve(trainingFiles(folder).curve).flatMap(({ step, loss, held }) =>
      held ? [{ step, loss, held }] : [],
    ),
    recall: recall!,
    pairs: (SEQUENCES * chunks) / 2,
    chance: topK / (chunks - 1),
    loss,
  };
}

/** Of all methods, in the order of what they move. */
const comparedMethods: readonly Pick<Settings, "method" | "topK">[] = [
  { method: "local", topK: 0 },
  { method: "meta", topK: 1 },
  { method: "meta", topK: 2 },
  { method: "meta", topK: 4 },
  { method: "ring", topK: 0 },
];

/** Whose map is drawn. */
const MAP_TOP_K = 2;

/**
 * Trains each method on the masked genome with the multiply-adds that ring attention needs for `settings.steps` steps, so that
 * a method that attends to fewer keys takes more steps; and measures the routers. `startOf` names how the training of that name is started.
 */
export async function compare(
  settings: Settings,
  startOf: (name: string) => TrainingLaunchOptions,
): Promise<{ methods: readonly MethodResult[]; map: RoutingMap }> {
  const budget = settings.steps * stepMultiplyAdds(0, { ...settings, method: "ring" });
  const methods: MethodResult[] = [];
  let map: RoutingMap | undefined;
  for (const contender of comparedMethods) {
    const name = nameOf(contender);
    const own = { ...settings, ...contender, folder: join(settings.folder, name.replace(" ", "-")) };
    const steps = stepsWithin(budget, own);
    const result = await trainMethod({ ...own, steps }, startOf(name));
    if (contender.method !== "meta") {
      methods.push(result);
      continue;
    }
    await using ctx: Context = await init({ seed: settings.seed });
    using trainer = await openTrained(ctx, result.settings);
    methods.push({ ...result, recall: await measureRouterRecall(trainer) });
    if (contender.topK === MAP_TOP_K) map = await mapRouting(ctx, result.settings, trainer.model);
  }
  return { methods, map: map! };
}

async function trainMethod(settings: Settings, start: TrainingLaunchOptions): Promise<MethodResult> {
  const began = performance.now();
  throwIfFailed(await startTraining(settings, start));
  const seconds = Math.round((performance.now() - began) / 1000);
  const curve = readCurve(trainingFiles(settings.folder).curve).filter(({ held }) => held);
  return { name: nameOf(settings), settings, seconds, curve };
}
