import { type Context, init } from "@mosaic/attention";
import { readCurve } from "./curve.ts";
import { judge } from "./judge.ts";
import type { PlantedRun } from "./results.ts";
import { filesOf, openTrained } from "./run.ts";
import type { Settings } from "./settings.ts";
import { mustSucceed, type Start, startTraining } from "./training.ts";

/** Held-out sequences that the trained model is judged on. */
const SEQUENCES = 64;

/** Trains on planted repeats, and judges how many the router finds in sequences that it has not seen. */
export async function findRepeats(settings: Settings, start: Start): Promise<PlantedRun> {
  const began = performance.now();
  mustSucceed(await startTraining(settings, start));
  const seconds = Math.round((performance.now() - began) / 1000);
  await using ctx: Context = await init({ seed: settings.seed });
  using trainer = await openTrained(ctx, settings);
  const { loss, recall } = await judge(trainer, SEQUENCES);
  const { chunks, topK, folder } = settings;
  return {
    settings: { ...settings, folder: "" },
    seconds,
    curve: readCurve(filesOf(folder).curve).flatMap(({ step, loss, held }) => (held ? [{ step, loss, held }] : [])),
    recall: recall!,
    pairs: (SEQUENCES * chunks) / 2,
    chance: topK / (chunks - 1),
    loss,
  };
}
