import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Context, layoutOf, masks, world } from "@mosaic/attention";
import { ringTraffic } from "@mosaic/attention/planner";
import { readLearningCurve } from "@mosaic/program";
import { afterAll, describe, expect, it } from "vitest";
import { parseSettings, type Settings } from "../src/settings.ts";
import { stepsForBudget, multiplyAddsPerStep } from "../src/cost.ts";
import type { CurvePoint } from "../src/curve.ts";
import { trainingFiles, train } from "../src/run.ts";
import { startTraining } from "../src/training.ts";

const directory = mkdtempSync(join(tmpdir(), "genome-test-"));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const tiny = (name: string, ...more: readonly string[]): Settings => {
  const sizes =
    "--chunks 8 --chunk-length 32 --embed-dim 16 --heads 1 --layers 1 --batch 2 --warmup 4 --learning-rate 0.01".split(
      " ",
    );
  const run = [
    "--steps",
    "12",
    "--evaluate-every",
    "6",
    "--checkpoint-every",
    "4",
    "--output-dir",
    join(directory, name),
  ];
  return parseSettings([...sizes, ...run, ...more]);
};

/** Trains on ranks of this process; the curve. */
async function curveOn(ranks: number, settings: Settings): Promise<readonly CurvePoint[]> {
  const contexts = await world(ranks, { seed: settings.seed });
  const one = async (ctx: Context): Promise<void> => {
    (await train(ctx, { ...settings, ranks }, () => {}))[Symbol.dispose]();
    await ctx.close();
  };
  await Promise.all(contexts.map(one));
  return readLearningCurve<CurvePoint>(trainingFiles(settings.outputDir).curve);
}

describe("training", () => {
  it.each(["meta", "ring", "local"])("has the same curve on 1 and on 4 ranks, and learns: %s", async (method) => {
    const one = await curveOn(1, tiny(`${method}-1`, "--method", method));
    const four = await curveOn(4, tiny(`${method}-4`, "--method", method));
    expect(one.length).toBe(12);
    one.forEach(({ loss, step, work }, i) => {
      expect(four[i]).toMatchObject({ step, work });
      expect(Math.abs(four[i]!.loss - loss)).toBeLessThan(2e-4);
    });
    const held = four.flatMap((entry) => (entry.held ? [entry.held.loss] : []));
    expect(held.at(-1)).toBeLessThan(held[0]! - 0.01);
    expect(one.at(-1)!.bytes).toBe(0);
  });

  it("copies what only another chunk holds: within 40 steps the loss is well below ln 4", async () => {
    const task = "--task planted --chunks 4 --chunk-length 32 --top-k 3 --warmup 0 --batch 12".split(" ");
    const run = "--steps 40 --evaluate-every 40 --learning-rate 0.005".split(" ");
    const curve = await curveOn(1, parseSettings([...task, ...run, "--output-dir", join(directory, "copies")]));
    expect(curve.at(-1)!.held!.recall).toBe(1);
    expect(curve.at(-1)!.held!.loss).toBeLessThan(Math.log(4) - 0.2);
  });

  it("counts the bytes that attention sends: ring's closed form; nothing for local", async () => {
    const settings = tiny("bytes", "--method", "ring", "--steps", "2");
    const [first, second] = await curveOn(4, settings);
    const tokens = layoutOf({ mesh: { sp: 4 }, axes: ["sp"], length: 8 * 32 });
    const call = { at: { sp: 1 }, mask: masks.full().slices(8 * 32, 8 * 32), queries: tokens, keys: tokens };
    const { forward, backward } = ringTraffic({ mesh: { sp: 4 }, call, width: 2 * 16, dtype: "float32" });
    expect(first!.bytes).toBe(4 * (forward.bytesSent + backward.bytesSent));
    expect(second!.bytes).toBe(2 * first!.bytes);
    const local = await curveOn(4, tiny("bytes-local", "--method", "local", "--steps", "1"));
    expect(local[0]!.bytes).toBe(0);
  });

  it("gives methods that attend to fewer keys more steps, never more work", () => {
    const of = (...more: readonly string[]): Settings => parseSettings(more);
    const budget = 200 * multiplyAddsPerStep(0, of("--method", "ring"));
    const steps = ["4", "2", "1"].map((topK) => stepsForBudget(budget, of("--method", "meta", "--top-k", topK)));
    expect(stepsForBudget(budget, of("--method", "ring"))).toBe(200);
    expect(steps).toEqual(steps.toSorted((a, b) => a - b));
    expect(steps[0]).toBeGreaterThan(200);
    const last = of("--method", "meta", "--top-k", "4");
    const done = Array.from({ length: steps[0]! }, (_, step) => multiplyAddsPerStep(step, last)).reduce(
      (a, b) => a + b,
      0,
    );
    expect(done).toBeLessThanOrEqual(budget);
    expect(done + multiplyAddsPerStep(steps[0]!, last)).toBeGreaterThan(budget);
  });
});

describe("a rank that is killed", () => {
  it("is started again with the others, and the curve is that of an undisturbed run, to the last bit", async () => {
    const [calm, disturbed] = [tiny("calm", "--ranks", "2"), tiny("killed", "--ranks", "2")];
    expect(await startTraining(calm)).toMatchObject({ outcome: "succeeded" });
    const pids = new Map<number, number>();
    const attempts = new Set<number>();
    let killed = false;
    const result = await startTraining(disturbed, {
      restartBackoffMs: 10,
      minUptimeMs: 0,
      onEvent(event) {
        if (event.type === "line") attempts.add(event.attempt);
        if (event.type === "spawn" && !killed) pids.set(event.rank, event.pid);
      },
      progress({ step }) {
        if (killed || step < 7) return;
        killed = true;
        process.kill(pids.get(1)!, "SIGKILL");
      },
    });
    expect(result).toMatchObject({ outcome: "succeeded" });
    expect(killed).toBe(true);
    expect(attempts.size).toBe(2);
    const read = (settings: Settings): string => readFileSync(trainingFiles(settings.outputDir).curve, "utf8");
    expect(read(disturbed)).toBe(read(calm));
    expect(readLearningCurve<CurvePoint>(trainingFiles(calm.outputDir).curve).map(({ step }) => step)).toEqual(
      Array.from({ length: 12 }, (_, i) => i + 1),
    );
  });

  it.each(["/proc/x", "/dev/null/x"])(
    "ends at once for an output directory that the system has no place for: %s",
    async (path) => {
      const settings = { ...tiny("nowhere"), outputDir: path };
      const [ctx] = (await world(1)) as [Context];
      await expect(train(ctx, settings, () => {})).rejects.toThrow(/^E[A-Z]+: .*(mkdir|stat)/);
      await ctx.close();
    },
  );
});
