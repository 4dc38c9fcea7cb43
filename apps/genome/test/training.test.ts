import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Context, layoutOf, masks, world } from "@mosaic/attention";
import { ringTraffic } from "@mosaic/attention/planner";
import { readLearningCurve, UsageError } from "@mosaic/program";
import { afterAll, describe, expect, it } from "vitest";
import { parseSettings, type Settings } from "../src/settings.ts";
import { stepsForBudget, multiplyAddsPerStep } from "../src/cost.ts";
import type { CurvePoint } from "../src/curve.ts";
import { trainingFilePaths, train } from "../src/run.ts";
import { launchTraining } from "../src/training.ts";

const directory = mkdtempSync(join(tmpdir(), "genome-test-"));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const createSettings = (name: string, ...args: readonly string[]): Settings => {
  const sizes = "--chunks 8 --chunk-length 32 --embed-dim 16 --heads 1 --layers 1 --batch 2 --learning-rate 0.01".split(
    " ",
  );
  const warmupArgs = args.includes("ring") || args.includes("local") ? [] : ["--warmup", "4"];
  const runArgs = [
    "--steps",
    "12",
    "--evaluate-every",
    "6",
    "--checkpoint-every",
    "4",
    "--output-dir",
    join(directory, name),
  ];
  return parseSettings([...sizes, ...warmupArgs, ...runArgs, ...args]);
};

/** Trains on ranks of this process, and returns the curve. */
async function trainOnRanks(ranks: number, settings: Settings): Promise<readonly CurvePoint[]> {
  const contexts = await world(ranks, { seed: settings.seed });
  const trainRank = async (ctx: Context): Promise<void> => {
    (await train(ctx, { ...settings, ranks }, () => {}))[Symbol.dispose]();
    await ctx.close();
  };
  await Promise.all(contexts.map(trainRank));
  return readLearningCurve<CurvePoint>(trainingFilePaths(settings.outputDir).curve);
}

describe("training", () => {
  it.each(["meta", "ring", "local"])(
    "has the same loss curve on 1 and 4 ranks, and reduces the held-out loss: %s",
    async (method) => {
      const singleRankCurve = await trainOnRanks(1, createSettings(`${method}-1`, "--method", method));
      const fourRankCurve = await trainOnRanks(4, createSettings(`${method}-4`, "--method", method));
      expect(singleRankCurve.length).toBe(12);
      singleRankCurve.forEach(({ loss, step, work }, i) => {
        expect(fourRankCurve[i]).toMatchObject({ step, work });
        expect(Math.abs(fourRankCurve[i]!.loss - loss)).toBeLessThan(2e-4);
      });
      const heldOutLosses = fourRankCurve.flatMap((entry) => (entry.held ? [entry.held.loss] : []));
      expect(heldOutLosses.at(-1)).toBeLessThan(heldOutLosses[0]! - 0.01);
      expect(singleRankCurve.at(-1)!.bytes).toBe(0);
    },
  );

  it("learns to copy from another chunk: after 40 steps, the loss is well below ln 4", async () => {
    const taskArgs = "--task planted --chunks 4 --chunk-length 32 --top-k 3 --warmup 0 --batch 12".split(" ");
    const runArgs = "--steps 40 --evaluate-every 40 --learning-rate 0.005".split(" ");
    const curve = await trainOnRanks(
      1,
      parseSettings([...taskArgs, ...runArgs, "--output-dir", join(directory, "copies")]),
    );
    expect(curve.at(-1)!.held!.recall).toBe(1);
    expect(curve.at(-1)!.held!.loss).toBeLessThan(Math.log(4) - 0.2);
  });

  it("counts the bytes that attention sends: the closed form for ring, 0 for local", async () => {
    const settings = createSettings("bytes", "--method", "ring", "--steps", "2");
    const [firstCurve, secondCurve] = await trainOnRanks(4, settings);
    const tokens = layoutOf({ mesh: { sp: 4 }, axes: ["sp"], length: 8 * 32 });
    const call = { at: { sp: 1 }, mask: masks.full().slices(8 * 32, 8 * 32), queries: tokens, keys: tokens };
    const { forward, backward } = ringTraffic({ mesh: { sp: 4 }, call, width: 2 * 16, dtype: "float32" });
    expect(firstCurve!.bytes).toBe(4 * (forward.bytesSent + backward.bytesSent));
    expect(secondCurve!.bytes).toBe(2 * firstCurve!.bytes);
    const localCurve = await trainOnRanks(4, createSettings("bytes-local", "--method", "local", "--steps", "1"));
    expect(localCurve[0]!.bytes).toBe(0);
  });

  it("gives more steps to methods that attend to fewer keys, within the same budget of work", () => {
    const parseArgs = (...flags: readonly string[]): Settings => parseSettings(flags);
    const budget = 200 * multiplyAddsPerStep(0, parseArgs("--method", "ring"));
    const steps = ["4", "2", "1"].map((topK) => stepsForBudget(budget, parseArgs("--method", "meta", "--top-k", topK)));
    expect(stepsForBudget(budget, parseArgs("--method", "ring"))).toBe(200);
    expect(steps).toEqual(steps.toSorted((a, b) => a - b));
    expect(steps[0]).toBeGreaterThan(200);
    const topFourSettings = parseArgs("--method", "meta", "--top-k", "4");
    const multiplyAdds = Array.from({ length: steps[0]! }, (_, step) =>
      multiplyAddsPerStep(step, topFourSettings),
    ).reduce((a, b) => a + b, 0);
    expect(multiplyAdds).toBeLessThanOrEqual(budget);
    expect(multiplyAdds + multiplyAddsPerStep(steps[0]!, topFourSettings)).toBeGreaterThan(budget);
  });
});

describe("failures during training", () => {
  it("a training is not resumed with other sizes, and continues with the same ones", async () => {
    const args = ["--ranks", "1", "--method", "local"];
    const runSteps = (...otherArgs: readonly string[]) =>
      launchTraining(createSettings("resumed", ...args, ...otherArgs));
    expect(await runSteps("--steps", "4")).toMatchObject({ outcome: "succeeded" });
    await expect(runSteps("--embed-dim", "32")).rejects.toThrow(
      /^--embed-dim: expected 16, the value of the training in .*resumed, received 32; pass the same value, or a different --output-dir$/,
    );
    await expect(runSteps("--method", "ring")).rejects.toThrow(UsageError);
    expect(await runSteps("--steps", "6")).toMatchObject({ outcome: "succeeded" });
    const { outputDir } = createSettings("resumed");
    expect(readLearningCurve<CurvePoint>(trainingFilePaths(outputDir).curve).length).toBe(6);
  });

  it("a killed rank is restarted with the others, and the curve equals that of an undisturbed run", async () => {
    const [undisturbed, disturbed] = [createSettings("calm", "--ranks", "2"), createSettings("killed", "--ranks", "2")];
    expect(await launchTraining(undisturbed)).toMatchObject({ outcome: "succeeded" });
    const pids = new Map<number, number>();
    const attempts = new Set<number>();
    let isKilled = false;
    const result = await launchTraining(disturbed, {
      restartBackoffMs: 10,
      minUptimeMs: 0,
      onEvent(event) {
        if (event.type === "line") attempts.add(event.attempt);
        if (event.type === "spawn" && !isKilled) pids.set(event.rank, event.pid);
      },
      onReport({ step }) {
        if (isKilled || step < 7) return;
        isKilled = true;
        process.kill(pids.get(1)!, "SIGKILL");
      },
    });
    expect(result).toMatchObject({ outcome: "succeeded" });
    expect(isKilled).toBe(true);
    expect(attempts.size).toBe(2);
    const readCurve = (settings: Settings): string => readFileSync(trainingFilePaths(settings.outputDir).curve, "utf8");
    expect(readCurve(disturbed)).toBe(readCurve(undisturbed));
    expect(
      readLearningCurve<CurvePoint>(trainingFilePaths(undisturbed.outputDir).curve).map(({ step }) => step),
    ).toEqual(Array.from({ length: 12 }, (_, i) => i + 1));
  });

  it.each(["/proc/x", "/dev/null/x"])(
    "training rejects an output directory that cannot be created: %s",
    async (path) => {
      const settings = { ...createSettings("nowhere"), outputDir: path };
      const [ctx] = (await world(1)) as [Context];
      await expect(launchTraining(settings)).rejects.toThrow(/^--output-dir: expected a folder that can be written/);
      await expect(train(ctx, settings, () => {})).rejects.toThrow(/^E[A-Z]+: .*(mkdir|stat)/);
      await ctx.close();
    },
  );
});
