import {
  addTraffic,
  backendTrials,
  batchTrials,
  measureTraffic,
  placements,
  runBackendOnRank,
  runOnWorld,
  type Trial,
} from "@mosaic/conformance";
import { type Context, layoutOf, type Slice, type Traffic } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { type Mesh2DOptions, mesh2d, mesh2dTraffic } from "../src/index.ts";
import { createEvenTrial, type GridShape, listGrids } from "./shapes.ts";
import { formatTitle, scheduleVariants } from "./ways.ts";
import { makeWorld } from "../../../vitest.world.ts";

/** Computes, with the closed form, what one rank sends and receives in a forward and a backward of a trial. */
function predictTraffic(trial: Trial, shape: GridShape | undefined, sp: number): Traffic {
  const { mesh, axes, mask, modifiers } = trial;
  const queries = layoutOf({ mesh, axes, ...trial.queries });
  const keys = layoutOf({ mesh, axes, ...trial.keys });
  const { forward, backward } = mesh2dTraffic({
    ...trial,
    ...(shape && { shape }),
    call: { at: { sp }, mask, modifiers, queries, keys },
  });
  return addTraffic(forward, backward);
}

/** Measures the same traffic. */
async function measureTrial(ctx: Context, options: Mesh2DOptions, trial: Trial): Promise<Traffic> {
  const [traffic] = await measureTraffic([ctx.mesh.group("sp")], () => runBackendOnRank(ctx, mesh2d(options), trial));
  return traffic!;
}

describe.each(listGrids(8))("%d × %d", (rows, columns) => {
  test("sends the bytes of the closed form for all masks, placements and schedules", async () => {
    const mesh = { sp: rows * columns };
    const trials = placements().flatMap((placement, i) =>
      backendTrials({ mesh, axes: ["sp"] }, { placement, dtype: i % 2 ? "float32" : "bfloat16", seed: 1 }),
    );
    trials.push(...batchTrials({ mesh, axes: ["sp"] }));
    // Every fourth trial, with alternating schedule variants. Neighboring grids have the other trials.
    const selectedTrials = trials
      .filter((_, i) => (i + rows + columns) % 4 === 0)
      .map((trial, i) => ({ trial, way: scheduleVariants[(i + rows) % scheduleVariants.length]! }));
    const shape: GridShape = [rows, columns];
    await runOnWorld(makeWorld, { size: mesh.sp, mesh }, async (ctx) => {
      for (const { trial, way } of selectedTrials) {
        const actual = await measureTrial(ctx, { shape, ...way }, trial);
        expect(actual, `${trial.name}, ${formatTitle(way)}`).toEqual(predictTraffic(trial, shape, ctx.rank));
      }
    });
  });
});

test.each([1, 2, 4])("sends 2(c−1) + (2/g)(r−1) query chunks forward, 3(c−1) + (4/g)(r−1) backward, g = %d", (g) => {
  for (const [rows, columns] of listGrids(12)) {
    const size = rows * columns;
    const trial = createEvenTrial(size, { numKvHeads: 4 / g });
    const layout = layoutOf({ mesh: trial.mesh, axes: ["sp"], ...trial.queries });
    const chunk = 4 * 4 * 8 * 4;
    const statistic = chunk / 8;
    for (let sp = 0; sp < size; sp++) {
      const call = { at: { sp }, mask: trial.mask, queries: layout, keys: layout };
      const { forward, backward } = mesh2dTraffic({ ...trial, shape: [rows, columns], call });
      const [c, r] = [columns - 1, rows - 1];
      expect(forward.bytesSent).toBe((2 * c + (2 / g) * r) * chunk + c * statistic);
      expect(forward.bytesReceived).toBe(forward.bytesSent);
      expect(backward.bytesSent).toBe((3 * c + (4 / g) * r) * chunk + 2 * c * statistic);
      expect(backward.bytesReceived).toBe(backward.bytesSent);
    }
  }
});

test.each([
  [1, [2, 3]],
  [2, [3, 2]],
  [4, [6, 1]],
] as const)("by default, uses the grid that sends least: %d query heads per KV head, %o", async (g, shape) => {
  const trial = { ...createEvenTrial(6, { numKvHeads: 4 / g }), batch: 2 };
  await runOnWorld(makeWorld, { size: 6 }, async (ctx) => {
    expect(await measureTrial(ctx, {}, trial)).toEqual(predictTraffic(trial, shape, ctx.rank));
    expect(predictTraffic(trial, undefined, ctx.rank)).toEqual(predictTraffic(trial, shape, ctx.rank));
  });
});

test("sends nothing if each document is on a single rank", async () => {
  const documents = [0, 1, 2, 3].map(
    (i): Slice => ({ q0: 4 * i, q1: 4 * i + 4, k0: 4 * i, k1: 4 * i + 4, type: "full" }),
  );
  await runOnWorld(makeWorld, { size: 4 }, async (ctx) => {
    for (const way of scheduleVariants) {
      const traffic = await measureTrial(ctx, { shape: [2, 2], ...way }, createEvenTrial(4, { mask: documents }));
      expect(traffic).toEqual({ bytesSent: 0, bytesReceived: 0, messagesSent: 0 });
    }
  });
});

test("rejects a grid with another number of ranks than the axis", () => {
  const trial = createEvenTrial(4);
  const layout = layoutOf({ mesh: trial.mesh, axes: ["sp"], ...trial.queries });
  const call = { at: { sp: 0 }, mask: trial.mask, queries: layout, keys: layout };
  expect(() => mesh2dTraffic({ ...trial, shape: [2, 3], call })).toThrow(
    "mesh2dTraffic: expected a grid of 4 ranks, received [2, 3], 6 ranks",
  );
});
