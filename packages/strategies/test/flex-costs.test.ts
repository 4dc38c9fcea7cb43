import { dispatch, flex } from "@mosaic/backend-flex";
import { masks, zigzag } from "@mosaic/core";
import { type Profile, profiles, predict } from "@mosaic/planner";
import { expect, test } from "vitest";
import { dispatchCost, plan, stageCost } from "../src/plan/index.ts";

const cpu = profiles["cpu-local"];
const sizes = { numHeads: 8, numKvHeads: 2, headDim: 64, dtype: "float32" } as const;
const problem = { ...sizes, profile: "cpu-local", ranks: 4 } as const;

test("on one node, costs are those of the links within it, which carry both directions", () => {
  expect(stageCost(problem)).toMatchObject({
    latency: 50e-6,
    bandwidth: 5e9,
    interleaved: 1.08,
    memoryBandwidth: 30e9,
  });
  // K and V of two heads of 64 in float32.
  expect(dispatchCost(problem)).toMatchObject({ latency: 50e-6, row: (2 * 2 * 64 * 4) / 5e9 });
});

test("beyond a node, costs are those of the links between nodes, which its ranks share", () => {
  const profile: Profile = { ...cpu, ranksPerNode: 2 };
  const options = { ...problem, profile };
  expect(stageCost(options)).toMatchObject({ latency: 60e-6, bandwidth: 1.1e9 / 2, localBandwidth: 5e9 });
  expect(dispatchCost(options).row).toBe((2 * 2 * 64 * 4) / (1.1e9 / 2));
  expect(stageCost({ ...options, ranks: 2 }).latency).toBe(50e-6);
});

test("rows of 16 bits have gradients of 32 bits", () => {
  const { row, gradientRow } = dispatchCost({ ...problem, dtype: "bfloat16" });
  expect(gradientRow! / row!).toBe(2);
});

test("the compute of a large call agrees with the planner's prediction", () => {
  const tokens = 16_384;
  const { pair, backwardPair } = dispatchCost(problem);
  const options = { ...sizes, tokens, mesh: { sp: 1 }, backend: flex(), mask: masks.full() };
  const { forwardSeconds, backwardSeconds } = predict(options, cpu);
  expect(forwardSeconds / (tokens ** 2 * pair!)).toBeCloseTo(1, 1);
  expect(backwardSeconds / (tokens ** 2 * backwardPair!)).toBeCloseTo(1, 1);
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
  [{ ...problem, profile: "h100" }, "stageCost: profile: expected h100-ib400"],
  [{ ...problem, ranks: 0 }, "stageCost: ranks: expected an integer ≥ 1, received 0"],
  [{ ...problem, profile: { ...cpu, kernels: { ...cpu.kernels, attend: {} } } }, "stageCost: dtype"],
])("invalid options are rejected %#", (options, message) => {
  expect(() => stageCost(options as typeof problem)).toThrow(message);
});
