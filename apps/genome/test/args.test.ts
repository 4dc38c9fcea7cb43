import { expect, test } from "vitest";
import { argsOf, help, readSettings, UsageError } from "../src/args.ts";

test("each task has defaults, options change them, and ranks are told the same", () => {
  const settings = readSettings(["--task", "planted", "--top-k", "1", "--learning-rate", "0.5", "--ranks", "2"]);
  expect(settings).toMatchObject({ task: "planted", method: "meta", topK: 1, learningRate: 0.5, ranks: 2, heads: 1 });
  expect(settings.folder).toBe("runs/planted-meta1-0");
  expect(readSettings(argsOf(settings))).toEqual(settings);
  expect(help).toContain("--chunk-length N");
});

test.each([
  [["--bogus"], "--bogus"],
  [["--task", "other"], 'expected one of genome, planted, received "other"'],
  [["--method", "flash"], "expected one of ring, meta, local"],
  [["--steps", "1.5"], 'a whole number ≥ 0, received "1.5"'],
  [["--learning-rate", "fast"], 'a number ≥ 0, received "fast"'],
  [["--chunks", "10"], "a multiple of the 4 ranks, received 10"],
  [["--top-k", "16"], "less than the 16 chunks, received 16"],
  [["--task", "planted", "--chunk-length", "20"], "at least the 30 bases that are planted in each, received 20"],
  [["--task", "planted", "--chunks", "5", "--ranks", "1"], "an even number"],
])("%j is refused: %s", (args, words) => {
  expect(() => readSettings(args)).toThrow(UsageError);
  expect(() => readSettings(args)).toThrow(words);
});
