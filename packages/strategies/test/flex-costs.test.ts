import { dispatch, flex } from "@mosaic/backend-flex";
import { masks, zigzag } from "@mosaic/core";
import { type Profile, profiles, predict } from "@mosaic/planner";
import { expect, test } from "vitest";
import { dispatchCost, plan, stageCost } from "../src/plan/index.ts";

const cpu = profiles["cpu-local"];
const sizes = { numHeads: 8, numKvHeads: 2, headDim: 64, dtype: "float32" } as const;
const problem = { ...sizes, profile: "cpu-local", ranks: 4 } as const;

test("on one node, costs are those of the links within it, which carry both directions, and of a share of the cores", () => {
  expect(stageCost(problem)).toMatchObject({
    latency: 50e-6,
    bandwidth: 5e9,
    interleaved: 1.08,
    memoryBandwidth: 15e9,
  });
  // K and V of two heads of 64 in float32.
  expect(dispatchCost(problem)).toMatchObject({ latency: 50e-6, row: (2 * 2 * 64 * 4) / 5e9 });
});

test("beyond a node, costs are those of the links between nodes, which its ranks share", () => {
  const profile: Profile = { ...cpu, ranksPerNode: 2 };
  const options = { ...problem, profile };
  expect(stageCost(options)).toMatchObject({ latency: 60e-6, bandwidth: 1.1e9 / 2, localBandwidth: 5e9 });
  expect(dispatchCost(options)).toMatchObject({
    row: (2 * 2 * 64 * 4) / (1.1e9 / 2),
    ranksPerHost: 2,
    localRow: 1.1e9 / 2 / 5e9,
  });
  expect(dispatchCost({ ...options, ranks: 2 })).not.toHaveProperty("ranksPerHost");
  expect(stageCost({ ...options, ranks: 2 }).latency).toBe(50e-6);
});

test("rows of 16 bits have gradients of 32 bits", () => {
  const { row, gradientRow } = dispatchCost({ ...problem, dtype: "bfloat16" });
  expect(gradientRow! / row!).toBe(2);
});

test("the forward and the backward have their own speeds, which fall with small heads", () => {
  const speed = { halfSpeedRows: 1, halfSpeedKeys: 3, halfSpeedHeadDim: 64 };
  const kernels = {
    ...cpu.kernels,
    attend: { float32: { ...speed, flops: 1e9 } },
    attendBackward: { float32: { ...speed, flops: 2e9, halfSpeedKeys: 5, halfSpeedHeadDim: 192 } },
  };
  const profile: Profile = { ...cpu, kernels, cores: { perNode: 1 } };
  // Half of 1e9, and a quarter of 2e9, for heads of 64.
  const expected = { flops: 0.5e9, backwardFlops: 0.5e9, halfSpeedKeys: 3, backwardHalfSpeedKeys: 5 };
  expect(stageCost({ ...problem, profile, ranks: 1 })).toMatchObject(expected);
});

test.each([
  { ranks: 1, efficiency: 1 },
  { ranks: 1, efficiency: 0.5 },
  { ranks: 4, efficiency: 1 },
])("the compute of a large call on $ranks ranks agrees with the planner's prediction", ({ ranks, efficiency }) => {
  const tokens = 16_384;
  const profile: Profile = { ...cpu, cores: { perNode: 2, efficiency } };
  const { pair, backwardPair } = dispatchCost({ ...problem, profile, ranks });
  const options = { ...sizes, tokens, mesh: { sp: ranks }, backend: flex(), mask: masks.full() };
  const { forwardSeconds, backwardSeconds } = predict(options, profile);
  for (const [seconds, cost] of [
    [forwardSeconds, pair!],
    [backwardSeconds, backwardPair!],
  ] as const) {
    const ratio = seconds / ((tokens ** 2 / ranks) * cost);
    expect(ratio).toBeGreaterThan(0.95);
    expect(ratio).toBeLessThan(1.15); // received keys take 1.08 times as long
  }
});

test("stages chosen by the cost of the machine are as fast on it as those of the default cost, or faster", () => {
  const lengths = [830, 114, 1321, 777, 49, 2093, 1205, 2588, 1688, 118, 20, 1337, 245, 100, 3899];
  const mask = masks.documents(lengths, "causal");
  const length = lengths.reduce((sum, each) => sum + each, 0);
  const options = { ...sizes, tokens: length, mesh: { sp: 2 }, mask };
  for (const placement of [zigzag(), dispatch({ mask, length, ranks: 2, chunkSize: 128 })]) {
    const [chosen, byDefault] = [flex({ cost: stageCost({ ...problem, ranks: 2 }) }), flex()].map(
      (backend) => predict({ ...options, placement, backend }, cpu).seconds,
    );
    expect(chosen!).toBeLessThanOrEqual(byDefault!);
  }
});

test("the planner's flex chooses stages by the cost of the machine", () => {
  const { ranking } = plan({ tokens: 1024, numHeads: 4, headDim: 16, gpusPerNode: 2, dtype: "float32" });
  const { code, strategy } = ranking.find(({ name }) => name === "flex 2")!;
  expect(code).toContain('mosaic.flex({ axis: "sp", cost: { latency: 0.00005, bandwidth: 5000000000,');
  expect(strategy.description).toContain("bandwidth 5000000000");
});

test.each([
  [{ ...problem, numKvHeads: 3 }, "stageCost: expected numHeads divisible by numKvHeads, received 8 and 3"],
  [{ ...problem, profile: "h100" }, "stageCost: profile: expected h100-ib400"],
  [{ ...problem, ranks: 0 }, "stageCost: ranks: expected an integer ≥ 1, received 0"],
  [{ ...problem, profile: { ...cpu, kernels: { ...cpu.kernels, attend: {} } } }, "stageCost: dtype"],
])("invalid options are rejected %#", (options, message) => {
  expect(() => stageCost(options as typeof problem)).toThrow(message);
});
