import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Context, world } from "@mosaic/attention";
import { Random, readLearningCurve } from "@mosaic/program";
import { afterAll, expect, test } from "vitest";
import { createModel, folderFilePaths, prepareFolder, readTokenizer } from "../src/model-folder.ts";
import { drawNeedleTexts, measureNeedles, textLengths } from "../src/needles/measure-needles.ts";
import { chooseNeedleRowOptions, countRows } from "../src/needles/curriculum.ts";
import { drawNeedleRow } from "../src/needles/needle-batches.ts";
import { createNeedleText, drawFacts, type FactTokens, findFactTokens, isUnseen } from "../src/needles/needle-text.ts";
import { parseModelSettings, parseTrainSettings, type TrainSettings, UsageError } from "../src/settings.ts";
import { type LossPoint, createSchedule, trainModel } from "../src/train-model.ts";
import { openTrainingData } from "../src/training-data.ts";

const out = mkdtempSync(join(tmpdir(), "needles-test-"));
afterAll(() => rmSync(out, { recursive: true, force: true }));

const sizes =
  "--vocabulary 320 --hidden 32 --layers 2 --heads 2 --kv-heads 2 --length 256 --batch 2 --steps 24 --learning-rate 0.02";
const createSettings = (...args: readonly string[]): TrainSettings =>
  parseTrainSettings(["--task", "needles", "--out", out, ...sizes.split(" "), ...args]);

/** Words 10, 11, …, and values 100, 101, …; other text is 9s. */
const [words, values] = [10, 100].map((firstToken) => Array.from({ length: 64 }, (_, i) => firstToken + i)) as [
  number[],
  number[],
];
const tokens: FactTokens = { openTokenId: 1, closeTokenId: 2, words, values };
const filler = new Array<number>(1000).fill(9);

test("facts are placed at their depths, and questions at the end ask for them", () => {
  const facts = [
    { key: [0, 1], value: 2 },
    { key: [3, 4], value: 5 },
  ] as const;
  const text = createNeedleText({ filler, facts, depths: [0.5, 0], askedFactIndices: [1, 0], length: 24 }, tokens);
  const [first, second] = [
    [1, 10, 11, 102, 2],
    [1, 13, 14, 105, 2],
  ] as const;
  const halfFiller = [9, 9, 9];
  expect(text.tokens.slice(0, 16)).toEqual([...second, ...halfFiller, ...first, ...halfFiller]);
  expect(text.tokens.slice(16)).toEqual([...second, ...first.slice(0, 3)]);
  expect(text.questionPositions).toEqual([18, 23]);
  expect(text.answers).toEqual([105, 102]);
});

test("a row asks for each fact once or until it is full, and states every answer before the questions", () => {
  for (const questionMode of ["once", "again"] as const) {
    for (const length of [64, 128, 1000]) {
      const rows = { length, maxFacts: 8, questionMode, tokensPerStep: length };
      const source = { tokens, filler: [...filler, ...filler], usesUnseenKeysOnly: false };
      const row = drawNeedleRow(source, rows, new Random(7, length));
      expect(row.tokens.length).toBe(length);
      expect(row.questionPositions.at(-1)).toBe(length - 1);
      const questions = row.questionPositions.map((position) => row.tokens.slice(position - 1, position + 1).join());
      const facts = new Set(questions).size;
      expect(facts).toBeLessThanOrEqual(8);
      const maxFillerFacts = Math.floor((length + 2) / 5) - facts;
      expect(questions.length).toBe(questionMode === "once" ? facts : maxFillerFacts);
      const statementPart = row.tokens.slice(0, row.questionPositions[0]! - 2);
      const statements = statementPart.flatMap((token, i) =>
        token === 1 ? [statementPart.slice(i + 1, i + 4).join()] : [],
      );
      expect(statements.length).toBe(facts);
      for (const [i, question] of questions.entries()) expect(statements).toContain(`${question},${row.answers[i]}`);
    }
  }
});

test("the learning rate of needles decays to 0 at the end", () => {
  const [needles, text] = (["needles", "text"] as const).map((task) => createSchedule({ task, steps: 100 }));
  for (const step of [0, 50, 80]) expect(needles!(step)).toBe(text!(step));
  expect(needles!(90)).toBeCloseTo(text!(90) / 2, 10);
  expect(needles!(100)).toBe(0);
});

test("measurements use keys that no training uses, for any seed", () => {
  const drawKeys = (usesUnseenKeysOnly: boolean, seed: number) =>
    drawFacts(300, { numWords: 138, numValues: 36, usesUnseenKeysOnly }, new Random(seed)).map(({ key }) => key);
  for (const seed of [0, 1, 2]) {
    expect(drawKeys(false, seed).some(isUnseen)).toBe(false);
    expect(drawKeys(true, seed).every(isUnseen)).toBe(true);
  }
  const unseenFlags = Array.from({ length: 138 ** 2 }, (_, i) => isUnseen([i % 138, Math.floor(i / 138)]));
  expect(unseenFlags.filter(Boolean).length / unseenFlags.length).toBeCloseTo(0.25, 1);
  expect(() => drawFacts(5, { numWords: 2, numValues: 36, usesUnseenKeysOnly: false }, new Random(0))).toThrow(
    /expected 5 keys.*enlarge/,
  );
  const textOptions = { length: 100, depth: 0.25, trials: 3, seed: 0 };
  expect(drawNeedleTexts({ tokens, filler }, textOptions)).toEqual(drawNeedleTexts({ tokens, filler }, textOptions));
  expect(drawNeedleTexts({ tokens, filler }, { ...textOptions, seed: 1 })).not.toEqual(
    drawNeedleTexts({ tokens, filler }, textOptions),
  );
});

test("needle rows are dense first, then double in length by stages, and every other step has shorter rows", () => {
  const rowsAtStep = (step: number) => chooseNeedleRowOptions(step, { steps: 100, length: 3000 });
  expect([0, 24, 25].map((step) => rowsAtStep(step).questionMode)).toEqual(["again", "again", "once"]);
  expect([0, 24, 25, 39, 40, 46, 48, 52, 54, 58, 60, 64, 66, 98].map((step) => rowsAtStep(step).length)).toEqual([
    ...[64, 64, 128, 128, 256, 256, 512, 512, 1024, 1024, 2048, 2048],
    ...[3000, 3000],
  ]);
  expect([41, 43, 45, 81, 83, 85, 87, 89, 91, 93].map((step) => rowsAtStep(step).length)).toEqual([
    ...[64, 128, 64],
    ...[1024, 2048, 64, 128, 256, 512, 1024],
  ]);
  expect([0, 40, 98].map((step) => countRows(rowsAtStep(step), 2))).toEqual([32, 32, 2]);
  expect([25, 40, 81, 99].map((step) => chooseNeedleRowOptions(step, { steps: 100, length: 128 }).length)).toEqual([
    128, 128, 64, 64,
  ]);
  expect(chooseNeedleRowOptions(99, { steps: 100, length: 20 }).length).toBe(20);
  expect(textLengths(4096)).toEqual([256, 512, 1024, 2048, 4096]);
  expect(() => createSettings("--minutes", "1")).toThrow(UsageError);
  expect(() => parseTrainSettings(["--task", "sums"])).toThrow(
    /--task: expected one of text, needles, received "sums"/,
  );
});

async function onMesh<T>(mesh: Readonly<Record<string, number>>, body: (ctx: Context) => Promise<T>): Promise<T[]> {
  const contexts = await world(
    Object.values(mesh).reduce((a, b) => a * b, 1),
    { seed: 0, mesh },
  );
  try {
    return await Promise.all(contexts.map((ctx) => body(ctx)));
  } finally {
    await Promise.all(contexts.map((ctx) => ctx.close()));
  }
}

test("data-parallel ranks read disjoint rows of the batch, and a restored state yields the same rows", async () => {
  const settings = createSettings("--ranks", "2", "--dp", "2");
  prepareFolder(out, settings);
  const readBatch = (ctx: Context, state: number) => {
    using data = openTrainingData(ctx, settings);
    data.train.load(state);
    using batch = data.train.next();
    expect([batch.length, data.train.state()]).toEqual([state < 6 ? 64 : 256, state + 1]);
    return batch.tokens.read().then((values) => Array.from(values));
  };
  const [fullBatch] = await onMesh({ dp: 1, sp: 1 }, (ctx) => readBatch(ctx, 3));
  for (const mesh of [
    { dp: 2, sp: 1 },
    { dp_replicate: 2, dp_shard: 2, sp: 1 },
  ])
    expect((await onMesh(mesh, (ctx) => readBatch(ctx, 3))).flat()).toEqual(fullBatch);
  const [laterBatch] = await onMesh({ dp: 1, sp: 1 }, (ctx) => readBatch(ctx, 18));
  expect(laterBatch).not.toEqual(fullBatch);
});

test("24 steps reduce the loss equally on one and two ranks, and the model recalls needles about by chance", async () => {
  const train = async (settings: TrainSettings) => {
    prepareFolder(out, settings);
    const { ranks } = settings;
    const files = folderFilePaths(out);
    for (const path of [files.checkpoint, files.curve]) rmSync(path, { recursive: true, force: true });
    await onMesh({ dp: 1, sp: ranks }, (ctx) => trainModel(ctx, settings, () => {}));
    return readLearningCurve<LossPoint>(files.curve).map(({ loss }) => loss);
  };
  const [initStd] = await onMesh({ dp: 1, sp: 1 }, async (ctx) => {
    using model = createModel(ctx, out, "local");
    const values = await model.decoder.embedding.weight.read();
    return Math.sqrt(values.reduce((sum, value) => sum + value * value, 0) / values.length);
  });
  expect(initStd).toBeCloseTo(0.125, 2);
  const singleRankCurve = await train(createSettings("--ranks", "1", "--backend", "local"));
  const twoRankCurve = await train(createSettings("--ranks", "2"));
  expect(singleRankCurve.length).toBe(24);
  for (const [i, loss] of twoRankCurve.entries()) expect(Math.abs(loss - singleRankCurve[i]!)).toBeLessThan(1e-4);
  // First a uniform guess over all tokens, then one over the values only.
  expect(singleRankCurve[0]).toBeCloseTo(Math.log(320), 0);
  expect(Math.min(...singleRankCurve)).toBeLessThan(singleRankCurve[0]! - 0.5);

  const settings = parseModelSettings(["--model", out, "--ranks", "1", "--length", "128", "--trials", "40"]);
  const [result] = await onMesh({ dp: 1, sp: 1 }, (ctx) => measureNeedles(ctx, settings, () => {}));
  const { cells, values: count, chance, trainedLength } = result!;
  expect(cells.map(({ length }) => length)).toEqual([64, 64, 64, 64, 64, 128, 128, 128, 128, 128]);
  expect([count, chance, trainedLength]).toEqual([findFactTokens(readTokenizer(out)).values.length, 1 / 8, 256]);
  const meanAccuracy = cells.reduce((sum, { accuracy }) => sum + accuracy, 0) / cells.length;
  expect(meanAccuracy).toBeLessThan(0.3);
  expect(JSON.parse(readFileSync(folderFilePaths(out).config, "utf8"))).toMatchObject({ rope_theta: 10_000 });
});
