import { type Coordinate, layoutOf, masks } from "@mosaic/core";
import { expect, test } from "vitest";
import { createFlexSettings, flex, type FlexOptions, flexOptions } from "../src/flex.ts";
import { FlexPlan } from "../src/plan.ts";

/** Transfers and kernels whose times are proportional to bytes and to floating-point operations. */
const cost = { latency: 0, launch: 0, enqueue: 0, memoryBandwidth: 1e12, flops: 1, backwardFlops: 1 } as const;
const size = { batch: 2, numHeads: 4, numKvHeads: 2, headDim: 4, valueHeadDim: 8, bytesPerElement: 4 };

const rowBytes = 2 * 2 * (4 + 8) * 4;
const flopsPerPair = 2 * (4 + 8) * 2 * 4;

/** Plans full attention over contiguous shards. */
function createPlan(mesh: Coordinate, length: number, options: FlexOptions): FlexPlan {
  const layout = layoutOf({ mesh, axes: Object.keys(mesh), length });
  const at = Object.fromEntries(Object.keys(mesh).map((axis) => [axis, 0]));
  const call = { at, mask: masks.full().slices(length, length), queries: layout, keys: layout };
  return new FlexPlan(createFlexSettings(flexOptions.parse(options)), { mesh }, call, at);
}

/** Returns the rows that rank 0 receives in each stage of the forward. */
function listStageRows(mesh: Coordinate, length: number, options: FlexOptions): number[] {
  const plan = createPlan(mesh, length, options).pass("forward", size);
  return Array.from({ length: plan.numStages }, (_, stage) => plan.numReceivedRows(stage, 0, 0));
}

test("each stage has the rows that arrive during the attention to the previous rows", () => {
  // A rank has 10 queries, which attend to 10 local keys and 40 remote ones: 100 and 400 pairs. 12 rows arrive during
  // the 100 pairs, and 14.4 during the 120 pairs of these.
  const bandwidth = (0.12 * rowBytes) / flopsPerPair;
  const options = { stages: 3, cost: { ...cost, bandwidth, halfSpeedKeys: 0 } };
  expect(listStageRows({ sp: 5 }, 50, options)).toEqual([12, 14, 14]);
});

test("ranks of a group of the inner backend share its pairs and its queries", () => {
  // A member has 10 of 20 queries. Its share of the pairs is 200 local and 800 remote ones, and it receives 40 rows.
  // Each call costs as much as 2 more keys, or 20 pairs. 12 rows arrive during 220 pairs, and 14.2 during 260.
  const bandwidth = (12 * rowBytes) / (220 * flopsPerPair);
  const options = {
    axis: "node",
    stages: 3,
    cost: { ...cost, bandwidth, halfSpeedKeys: 2 },
    inner: flex({ axis: "gpu" }),
  };
  expect(listStageRows({ node: 5, gpu: 2 }, 100, options)).toEqual([12, 14, 14]);
});

test("the parts of the local rows are in proportion to the first transfer and the last return of gradients", () => {
  const options = { stages: 1, cost: { ...cost, bandwidth: 0.3, backwardHalfSpeedKeys: 0 } };
  // A row of k and v has half as many bytes as its gradients in float32.
  const backward = createPlan({ sp: 2 }, 60, options).pass("backward", { ...size, bytesPerElement: 2 });
  expect(backward.numOwnParts).toBe(2);
  expect([backward.ownRowRange(0, 0, 0), backward.ownRowRange(1, 0, 0)]).toEqual([
    { from: 0, to: 10 },
    { from: 10, to: 30 },
  ]);
});
