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
import { dtypeBytes, layoutOf, type Traffic } from "@mosaic/core";
import { expect, test } from "vitest";
import { ulysses, ulyssesTraffic } from "../src/index.ts";
import { makeWorld } from "../../../vitest.world.ts";

/** Measures the traffic of one forward and backward of each trial, by trial and rank. */
async function measureTrials(size: number, trials: readonly Trial[]): Promise<Traffic[][]> {
  const trafficByRank = await runOnWorld(makeWorld, { size }, async (ctx) => {
    const traffic: Traffic[] = [];
    for (const trial of trials) {
      traffic.push(...(await measureTraffic([ctx.world], () => runBackendOnRank(ctx, ulysses(), trial))));
    }
    return traffic;
  });
  return trials.map((_, i) => trafficByRank.map((traffic) => traffic[i]!));
}

/** Computes the same traffic with the closed form. */
function predictTraffic(trial: Trial): Traffic[] {
  const { mesh, axes, mask, modifiers, ...sizes } = trial;
  const queries = layoutOf({ mesh, axes, ...trial.queries });
  const keys = layoutOf({ mesh, axes, ...trial.keys });
  return Array.from({ length: mesh["sp"]! }, (_, sp) => {
    const { forward, backward } = ulyssesTraffic({
      ...sizes,
      mesh,
      call: { at: { sp }, mask, modifiers, queries, keys },
    });
    return addTraffic(forward, backward);
  });
}

for (const size of [1, 2, 3, 5]) {
  test(`${size} ranks: traffic equals the closed form for every mask and placement`, async () => {
    const dtype = size % 2 ? "float32" : "bfloat16";
    const trials = placements().flatMap((placement) =>
      backendTrials({ mesh: { sp: size }, axes: ["sp"] }, { placement, dtype, seed: 1 }),
    );
    trials.push(...batchTrials({ mesh: { sp: size }, axes: ["sp"] }));
    const measuredTraffic = await measureTrials(size, trials);
    for (const [i, trial] of trials.entries()) expect(measuredTraffic[i], trial.name).toEqual(predictTraffic(trial));
  });
}

/** Creates a trial with equal shards of 8 rows and a full mask. */
function createEvenTrial(size: number, sizes: Pick<Trial, "numHeads" | "numKvHeads" | "dtype">): Trial {
  const length = 8 * size;
  const sequence = { length, placement: placements()[0]! };
  return {
    name: "even",
    mesh: { sp: size },
    axes: ["sp"],
    ...{ batch: 2, headDim: 4, scale: 0.5, seed: 1 },
    ...sizes,
    mask: [{ q0: 0, q1: length, k0: 0, k1: length, type: "full" }],
    maskMod: () => true,
    queries: sequence,
    keys: sequence,
  };
}

test.each([2, 4, 8])("%d ranks that divide all heads evenly send (p − 1)/p of all rows", async (size) => {
  for (const dtype of ["float32", "bfloat16"] as const) {
    const trial = createEvenTrial(size, { numHeads: 16, numKvHeads: 8, dtype });
    const queryElements = 2 * 16 * 8 * 4; // elements in a shard of q, out, dOut and dq
    const statisticElements = 2 * 16 * 8; // elements in a shard of lse and delta
    const keyElements = queryElements / 2;
    const elementBytes = dtypeBytes[dtype];
    const forward = elementBytes * (queryElements + 2 * keyElements) + 4 * (queryElements + statisticElements);
    const backward =
      elementBytes * (2 * queryElements + 2 * keyElements) +
      4 * 2 * statisticElements +
      4 * (queryElements + 2 * keyElements);
    const bytes = ((size - 1) / size) * (forward + backward);
    const [traffic] = await measureTrials(size, [trial]);
    for (const each of traffic!) {
      expect(each).toEqual({ bytesSent: bytes, bytesReceived: bytes, messagesSent: (3 + 2 + 6 + 3) * (size - 1) });
    }
    expect(predictTraffic(trial)).toEqual(traffic);
  }
});

test("KV heads are sent to each rank that reads them, and to no others", async () => {
  const trial = createEvenTrial(4, { numHeads: 4, numKvHeads: 2, dtype: "float32" });
  const rowBytes = 2 * 8 * 4 * 4; // bytes of one head of a shard
  const statisticBytes = 2 * 8 * 4;
  // One head of q, k and v is sent to each of three other ranks, and the same amount is returned.
  const forward = 3 * (3 * rowBytes + rowBytes + statisticBytes);
  const backward = 3 * (4 * rowBytes + 2 * statisticBytes + 3 * rowBytes);
  const [traffic] = await measureTrials(4, [trial]);
  for (const { bytesSent } of traffic!) expect(bytesSent).toBe(forward + backward);
});

test("a rank without heads sends only its rows, and receives only their results", async () => {
  const trial = createEvenTrial(3, { numHeads: 2, numKvHeads: 2, dtype: "float32" });
  const rowBytes = 2 * 8 * 4 * 4;
  const statisticBytes = 2 * 8 * 4;
  const [traffic] = await measureTrials(3, [trial]);
  const sentBytes = 2 * (3 * rowBytes) + 2 * (4 * rowBytes + 2 * statisticBytes);
  const receivedBytes = 2 * (rowBytes + statisticBytes) + 2 * (3 * rowBytes);
  expect(traffic![2]).toEqual({ bytesSent: sentBytes, bytesReceived: receivedBytes, messagesSent: 2 * (3 + 6) });
});

test("nothing is sent if no pair is visible", async () => {
  const trial = {
    ...createEvenTrial(3, { numHeads: 3, numKvHeads: 3, dtype: "float32" }),
    mask: [],
    maskMod: () => false,
  };
  const noTraffic = { bytesSent: 0, bytesReceived: 0, messagesSent: 0 };
  expect(await measureTrials(3, [trial])).toEqual([[noTraffic, noTraffic, noTraffic]]);
  expect(predictTraffic(trial)).toEqual([noTraffic, noTraffic, noTraffic]);
});
