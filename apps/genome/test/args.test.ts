import { expect, test } from "vitest";
import { UsageError } from "@mosaic/program";
import { checkNoOptions, formatArgs, help, parseSettings } from "../src/settings.ts";

test("tasks have defaults, options override them, and formatted arguments parse to the same settings", () => {
  const settings = parseSettings(["--task", "planted", "--top-k", "1", "--learning-rate", "0.5", "--ranks", "2"]);
  expect(settings).toMatchObject({ task: "planted", method: "meta", topK: 1, learningRate: 0.5, ranks: 2, heads: 1 });
  expect(settings.outputDir).toBe("runs/planted-meta1-0");
  expect(parseSettings(formatArgs(settings))).toEqual(settings);
  const ringSettings = parseSettings(["--method", "ring", "--steps", "7"]);
  expect(parseSettings(formatArgs(ringSettings))).toEqual(ringSettings);
  expect(help).toContain("--chunk-length N");
});

test.each([
  [["--bogus"], "--bogus"],
  [["--task", "other"], 'expected one of genome, planted, received "other"'],
  [["--method", "flash"], "expected one of ring, meta, local"],
  [["--steps", "1.5"], 'an integer ≥ 0, received "1.5"'],
  [["--learning-rate", "fast"], 'a number ≥ 0, received "fast"'],
  [["--chunks", "10"], "a multiple of the 4 ranks, received 10"],
  [["--top-k", "16"], "--top-k: expected an integer below the number of chunks, 16; received 16"],
  [["--method", "ring", "--top-k", "2"], "--top-k: expected no value with --method ring"],
  [["--method", "local", "--teacher", "0.5"], "--teacher: expected no value with --method local"],
  [["--batch", "0"], "--batch: expected at least 1, received 0"],
  [["--heads", "3"], "--embed-dim: expected a multiple of the 3 heads, received 64"],
  [["--layers", "0"], "--layers: expected at least 1"],
  [["--chunk-length", "1024"], "the number of held-out bases; received 16 chunks of 1024"],
  [
    ["--task", "planted", "--chunk-length", "20"],
    "at least 30, the number of bases planted in each chunk; received 20",
  ],
  [["--task", "planted", "--chunks", "5", "--ranks", "1"], "an even number"],
])("%j is refused: %s", (args, expectedText) => {
  expect(() => parseSettings(args)).toThrow(UsageError);
  expect(() => parseSettings(args)).toThrow(expectedText);
});

test("a command without options rejects options", () => {
  checkNoOptions("draw", []);
  expect(() => checkNoOptions("draw", ["--output-dir", "x"])).toThrow(
    new UsageError('draw: expected no options, received "--output-dir x"'),
  );
});

test("options that the command sets itself are rejected", () => {
  const fixedOptions = { task: "genome", method: "meta", "top-k": "2", "output-dir": "" };
  expect(parseSettings(["--steps", "7"], fixedOptions)).toMatchObject({
    task: "genome",
    topK: 2,
    steps: 7,
    outputDir: "",
  });
  for (const flag of ["--task", "--method", "--top-k", "--output-dir"]) {
    expect(() => parseSettings([flag, "1"], fixedOptions)).toThrow(
      `${flag}: expected no value, because this command sets the option; received "1"`,
    );
  }
});
