import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring, ringTraffic } from "@mosaic/backend-ring";
import { ulysses, ulyssesTraffic } from "@mosaic/backend-ulysses";
import {
  addTraffic,
  backendTrials,
  measureTraffic,
  placements,
  runBackendOnRank,
  runOnWorld,
  type Trial,
} from "@mosaic/conformance";
import { type Coordinate, layoutOf, local, omitAxes, type Traffic } from "@mosaic/core";
import { count, record } from "@mosaic/planner";
import { expect, test } from "vitest";
import { type BackendFactory, composed, hierarchical, type Strategy } from "../src/index.ts";
import { makeWorld } from "../../../vitest.world.ts";

// No formula of this package is tested: the traffic of a strategy along an axis must equal the closed form of the
// nested backend.

/** Compares the traffic of one forward and backward of each trial along some axes with the predicted traffic. */
async function compareTraffic(
  strategy: Strategy,
  ranks: number,
  closedForm: (coordinate: Coordinate, trial: Trial) => object,
) {
  const mesh = strategy.meshFor(ranks);
  const options = { placement: placements()[1]!, dtype: "bfloat16", seed: 2 } as const;
  const trials = backendTrials({ mesh, axes: strategy.axes }, options).filter(({ numHeads }) => numHeads % 2 === 0);
  expect(trials.length).toBeGreaterThan(5);
  await runOnWorld(makeWorld, { size: ranks, mesh }, async (ctx) => {
    const groups = strategy.axes.map((axis) => ctx.mesh.group(axis));
    for (const trial of trials) {
      const traffic = await measureTraffic(groups, () => runBackendOnRank(ctx, strategy, trial));
      const trafficByAxis = Object.fromEntries(strategy.axes.map((axis, i) => [axis, traffic[i]!]));
      expect(trafficByAxis, trial.name).toEqual(closedForm(ctx.mesh.coordinate, trial));
    }
  });
}

const sumForwardAndBackward = ({ forward, backward }: { forward: Traffic; backward: Traffic }) =>
  addTraffic(forward, backward);

function createShardedCall({ mesh, axes, mask, queries, keys }: Trial, coordinate: Coordinate) {
  return {
    at: coordinate,
    mask,
    queries: layoutOf({ mesh, axes, ...queries }),
    keys: layoutOf({ mesh, axes, ...keys }),
  };
}

test("composed sends one exchange of rows for heads, and then a ring for half of the heads", async () => {
  await compareTraffic(composed({ meshShape: { head: 2, seq: 2 } }), 4, (coordinate, trial) => {
    const { mesh, batch, numKvHeads, headDim, dtype } = trial;
    const width = (batch * numKvHeads * headDim) / 2;
    const innerBackend = ring({ axis: "seq" });
    return {
      head: sumForwardAndBackward(
        ulyssesTraffic({ ...trial, axis: "head", inner: innerBackend, call: createShardedCall(trial, coordinate) }),
      ),
      seq: sumForwardAndBackward(
        ringTraffic({
          axis: "seq",
          mesh,
          call: createShardedCall(trial, omitAxes(coordinate, ["head"])),
          width,
          dtype,
        }),
      ),
    };
  });
});

test("hierarchical sends the same bytes between nodes with a ring as with ulysses inside each node", async () => {
  const bytesByStrategy: Record<string, number> = {};
  for (const intraNodeStrategy of ["ring", "ulysses"] as const) {
    const strategy = hierarchical({ intraNodeSize: 2, intraNodeStrategy });
    const mesh = strategy.meshFor(4);
    const [trial] = backendTrials(
      { mesh, axes: strategy.axes },
      { placement: placements()[0]!, dtype: "float32", seed: 1, extents: [{ queries: 24, keys: 24, masks: ["full"] }] },
    );
    const ranks = await runOnWorld(makeWorld, { size: 4, mesh }, async (ctx) => {
      await runBackendOnRank(ctx, strategy, trial!);
      return ctx.mesh.group("node").traffic().bytesSent;
    });
    expect(new Set(ranks).size).toBe(1);
    bytesByStrategy[intraNodeStrategy] = ranks[0]!;
  }
  expect(bytesByStrategy["ulysses"]).toBe(bytesByStrategy["ring"]);
});

test("ulysses exchanges rows for heads at every step inside a ring, and once outside a ring", async () => {
  const mesh = { node: 2, gpu: 2 };
  const axes = ["node", "gpu"];
  const options = { placement: placements()[0]!, dtype: "float32", seed: 1 } as const;
  const [trial] = backendTrials({ mesh, axes }, { ...options, extents: [{ queries: 24, keys: 24, masks: ["full"] }] });
  const messages = async (backend: ReturnType<typeof ring>) =>
    runOnWorld(makeWorld, { size: 4, mesh }, async (ctx) => {
      await runBackendOnRank(ctx, backend, trial!);
      return ctx.mesh.group("gpu").traffic().messagesSent;
    });
  const once = 3 + 2 + (6 + 3);
  const outerStrategy = ulysses({ axis: "gpu", inner: ring({ axis: "node" }) });
  expect(await messages(outerStrategy)).toEqual([once, once, once, once]);
  const innerStrategy = ring({ axis: "node", inner: ulysses({ axis: "gpu" }) });
  expect(await messages(innerStrategy)).toEqual([2 * once, 2 * once, 2 * once, 2 * once]);
});

test("a strategy inside another backend has the same traffic as its nested backend", () => {
  const createGrid: BackendFactory = (axis, inner) => mesh2d({ axis, inner, shape: [2, 2] });
  const strategy = composed({ meshShape: { head: 1, seq: 4 }, headParallel: false, seqParallel: createGrid });
  const [nested, direct] = [strategy, createGrid("seq", local())].map((inner) =>
    count(
      record({
        backend: ring({ axis: "node", inner }),
        mesh: { node: 3, seq: 4 },
        ...{ tokens: 48, numHeads: 2, headDim: 8 },
      }),
    ),
  );
  expect(nested).toEqual(direct);
});
