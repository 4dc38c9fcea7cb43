import { mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { drawLossCurve, drawNeedles, drawPerplexity } from "../src/draw/pictures.ts";
import { prepareFolder } from "../src/model-folder.ts";
import { positionBounds } from "../src/perplexity.ts";
import { createTrainMesh, parseModelSettings, parseTrainSettings, UsageError } from "../src/settings.ts";

test.each([
  [["--ranks", "4", "--dp", "3"], /--dp: expected a divisor of the 4 ranks, received 3/],
  [["--ranks", "4", "--dp", "4", "--batch", "2"], /--batch: expected a multiple of --dp, 4, received 2/],
  [["--dp", "4", "--zero", "1", "--replicas", "3"], /--replicas: expected a divisor of --dp, 4, received 3/],
  [["--dp", "4", "--replicas", "2"], /--replicas: expected 1 without --zero, received 2/],
  [["--zero", "4"], /--zero: expected 0 to 3/],
  [["--kv-heads", "3"], /--kv-heads: expected a divisor of the 4 heads/],
  [["--hidden", "100"], /--hidden: expected a multiple of 2 × --heads, 8, received 100/],
  [["--minutes", "0"], /--steps: expected a number > 0 without --minutes/],
  [["--backend", "local"], /--backend: expected ring, flex or ulysses if --ranks exceeds --dp/],
  [["--backend", "star"], /--backend: expected one of ring, flex, ulysses, local, received "star"/],
  [["--steps", "1.5"], /--steps: expected an integer ≥ 0, received "1.5"/],
  [["--stepz", "1"], /--stepz/],
])("%j is a usage error", (args, message) => {
  expect(() => parseTrainSettings(args)).toThrow(UsageError);
  expect(() => parseTrainSettings(args)).toThrow(message);
});

test("settings have defaults", () => {
  expect(parseTrainSettings([])).toMatchObject({ minutes: 2, ranks: 4, backend: "ring", vocabulary: 2048 });
  expect(parseModelSettings(["--tokens", "5"])).toMatchObject({ model: "runs/llm", tokens: 5, temperature: 0.8 });
});

test("the mesh of a training has axes for replicas and shards only for hybrid sharding", () => {
  expect(createTrainMesh({ ranks: 8, dp: 4, replicas: 1 })).toEqual({ dp: 4, sp: 2 });
  const mesh = createTrainMesh({ ranks: 8, dp: 4, replicas: 2 });
  expect(Object.entries(mesh)).toEqual([
    ["dp_replicate", 2],
    ["dp_shard", 2],
    ["sp", 2],
  ]);
});

test("preparing a folder twice succeeds, and preparing it with other sizes fails", () => {
  const folder = mkdtempSync(join(tmpdir(), "llm-folder-"));
  const sizes = parseTrainSettings(["--vocabulary", "300"]);
  prepareFolder(folder, sizes);
  prepareFolder(folder, sizes);
  expect(() => prepareFolder(folder, { ...sizes, layers: 7 })).toThrow(
    /num_hidden_layers 4, expected 7; remove the folder, or set --out/,
  );
  rmSync(folder, { recursive: true });
});

test("preparing a folder that cannot be written leaves no temporary files", () => {
  const folder = mkdtempSync(join(tmpdir(), "llm-folder-"));
  mkdirSync(join(folder, "training", "train.bin"), { recursive: true });
  const sizes = parseTrainSettings(["--vocabulary", "300"]);
  expect(() => prepareFolder(folder, sizes)).toThrow(
    /--out: expected a folder that can be written, received .*train.bin/,
  );
  expect(readdirSync(join(folder, "training"))).toEqual(["train.bin"]);
  rmSync(folder, { recursive: true });
});

test("bounds of positions double up to the sequence length", () => {
  expect(positionBounds(100)).toEqual([0, 16, 32, 64, 100]);
});

test("pictures show the measured values", () => {
  const settings = parseTrainSettings([]);
  const curve = drawLossCurve(
    [
      { step: 1, loss: 7 },
      { step: 2, loss: 6, heldOut: 6.5 },
    ],
    settings,
  );
  expect(curve).toContain("4 layers, hidden size 128, sequence length 512, ring on 4 ranks, seed 0");
  expect(curve.match(/<polyline/g)?.length).toBe(2);
  const positions = [
    { from: 0, to: 16, loss: 5, error: 0.1 },
    { from: 16, to: 32, loss: 4, error: 0.1 },
  ];
  const perplexity = drawPerplexity({
    length: 32,
    texts: 3,
    positions,
    contexts: [
      { context: 4, loss: 4.5 },
      { context: 16, loss: 4.2 },
    ],
  });
  expect(perplexity.match(/<circle/g)?.length).toBe(4);
  const cells = [0, 1].flatMap((depth) => [64, 128].map((length) => ({ depth, length, accuracy: 0.25 + depth / 2 })));
  const needles = drawNeedles({ cells, trials: 8, seed: 1, facts: 8, values: 36, chance: 0.125, trainedLength: 64 });
  expect(needles).toContain("128 (untrained)");
  expect(needles.match(/>0\.75</g)?.length).toBe(2);
  for (const picture of [curve, perplexity, needles]) expect(picture).not.toContain("NaN");
});
