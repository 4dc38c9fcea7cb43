import { cpSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Context, world } from "@mosaic/attention";
import { loadModel } from "@mosaic/models";
import { afterAll, describe, expect, test } from "vitest";
import { readLearningCurve, launchRanks } from "@mosaic/program";
import { generateText } from "../src/generate-text.ts";
import { createConfig, folderFilePaths, prepareFolder } from "../src/model-folder.ts";
import { measureNeedles } from "../src/needles/measure-needles.ts";
import { measurePerplexity } from "../src/perplexity.ts";
import { createTrainMesh, parseModelSettings, parseTrainSettings, type TrainSettings } from "../src/settings.ts";
import { type LossPoint, trainModel } from "../src/train-model.ts";

const folder = mkdtempSync(join(tmpdir(), "llm-test-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

function createSettings(name: string, ...args: readonly string[]): TrainSettings {
  const sizes = "--vocabulary 300 --hidden 32 --layers 2 --heads 2 --kv-heads 1 --length 64 --batch 4".split(" ");
  const runArgs = "--minutes 0 --steps 8 --checkpoint-every 3 --evaluate-every 4 --learning-rate 0.01".split(" ");
  const settings = parseTrainSettings([...sizes, ...runArgs, "--out", join(folder, name), ...args]);
  prepareFolder(join(folder, "prepared"), settings);
  cpSync(join(folder, "prepared"), settings.out, { recursive: true });
  return settings;
}

/** Runs `body` on ranks of this process. */
async function onMesh<T>(mesh: Readonly<Record<string, number>>, body: (ctx: Context) => Promise<T>): Promise<T[]> {
  const ranks = Object.values(mesh).reduce((product, axisSize) => product * axisSize, 1);
  const contexts = await world(ranks, { seed: 0, mesh });
  try {
    return await Promise.all(contexts.map((ctx) => body(ctx)));
  } finally {
    await Promise.all(contexts.map((ctx) => ctx.close()));
  }
}

const readCurve = ({ out }: TrainSettings): readonly LossPoint[] =>
  readLearningCurve<LossPoint>(folderFilePaths(out).curve);

async function train(settings: TrainSettings): Promise<readonly LossPoint[]> {
  await onMesh(createTrainMesh(settings), (ctx) => trainModel(ctx, settings, () => {}));
  return readCurve(settings);
}

const singleRankSettings = createSettings("one", "--ranks", "1");

describe("training", () => {
  test("has the same loss curve for every mesh, backend and ZeRO stage", async () => {
    const expected = await train(singleRankSettings);
    expect(expected.map(({ step }) => step)).toEqual([1, 2, 3, 4, 5, 6, 7, 8]);
    expect(expected.at(-1)!.loss).toBeLessThan(expected[0]!.loss - 0.1);
    expect(expected.filter(({ heldOut }) => heldOut !== undefined).map(({ step }) => step)).toEqual([4, 8]);
    const otherArgs = [
      ["--ranks", "2", "--backend", "flex"],
      ["--ranks", "4"],
      ["--ranks", "4", "--dp", "2", "--zero", "3"],
      ["--ranks", "8", "--dp", "4", "--zero", "3", "--replicas", "2"],
    ] as const;
    for (const args of otherArgs) {
      const curve = await train(createSettings(args.join(""), ...args));
      for (const [i, { loss, heldOut }] of curve.entries()) {
        expect(Math.abs(loss - expected[i]!.loss)).toBeLessThan(1e-4);
        expect(Math.abs((heldOut ?? 0) - (expected[i]!.heldOut ?? 0))).toBeLessThan(1e-4);
      }
    }
  });

  test("writes a Hugging Face folder that loads, measures and generates equally on one and two ranks", async () => {
    const { out } = singleRankSettings;
    const json = JSON.parse(readFileSync(join(out, "config.json"), "utf8")) as Record<string, unknown>;
    const { torch_dtype: dtype, ...config } = createConfig(singleRankSettings);
    expect(json).toMatchObject(config);
    expect(json["dtype"] ?? json["torch_dtype"]).toBe(dtype);
    const options = ["--model", out, "--trials", "2", "--tokens", "12", "--prompt", "In the"];
    const measureOnRanks = async (ranks: number) => {
      const settings = parseModelSettings([...options, "--ranks", String(ranks)]);
      const [result] = await onMesh({ dp: 1, sp: ranks }, async (ctx) => {
        let text = "";
        await generateText(ctx, { ...settings, temperature: 0 }, (piece) => void (text += piece.text));
        using model = await loadModel(ctx, out, { backend: "ring" });
        expect(model.config.modelType).toBe("llama");
        const perplexity = await measurePerplexity(ctx, settings, () => {});
        return { text, perplexity, needles: await measureNeedles(ctx, settings, () => {}) };
      });
      return result!;
    };
    const [singleRankResult, twoRankResult] = [await measureOnRanks(1), await measureOnRanks(2)];
    expect(twoRankResult.text).toBe(singleRankResult.text);
    expect(singleRankResult.text.length).toBeGreaterThan(0);
    expect(twoRankResult.needles).toEqual(singleRankResult.needles);
    const listLosses = (result: typeof singleRankResult) => [
      ...result.perplexity.positions,
      ...result.perplexity.contexts,
    ];
    for (const [i, { loss }] of listLosses(singleRankResult).entries()) {
      expect(Math.abs(listLosses(twoRankResult)[i]!.loss - loss)).toBeLessThan(1e-4);
      // There are 300 tokens. A model that was trained a little is better than guessing.
      expect(loss).toBeLessThan(Math.log(300) + 0.3);
    }
    expect(singleRankResult.perplexity.positions.map(({ from, to }) => [from, to])).toEqual([
      [0, 16],
      [16, 32],
      [32, 64],
    ]);
  });
});

test("a killed rank is restarted with the others, and curve and weights equal those of an undisturbed training", async () => {
  const [undisturbed, disturbed] = [createSettings("calm", "--ranks", "2"), createSettings("killed", "--ranks", "2")];
  const entry = new URL("../dist/rank.js", import.meta.url);
  const program = (settings: TrainSettings) => ({ entry, args: ["train", JSON.stringify(settings)], ranks: 2 });
  expect(await launchRanks(program(undisturbed))).toMatchObject({ outcome: "succeeded" });
  const pids = new Map<number, number>();
  const attempts = new Set<number>();
  let isKilled = false;
  const result = await launchRanks<LossPoint>(program(disturbed), {
    restartBackoffMs: 10,
    minUptimeMs: 0,
    onEvent(event) {
      if (event.type === "line") attempts.add(event.attempt);
      if (event.type === "spawn" && !isKilled) pids.set(event.rank, event.pid);
    },
    onReport({ step }) {
      if (isKilled || step < 5) return;
      isKilled = true;
      process.kill(pids.get(1)!, "SIGKILL");
    },
  });
  expect(result).toMatchObject({ outcome: "succeeded" });
  expect([isKilled, attempts.size]).toEqual([true, 2]);
  expect(readCurve(disturbed)).toEqual(readCurve(undisturbed));
  expect(readCurve(undisturbed).length).toBe(8);
  const weights = ({ out }: TrainSettings) => readFileSync(join(out, "model.safetensors"));
  expect(weights(disturbed).equals(weights(undisturbed))).toBe(true);
});
