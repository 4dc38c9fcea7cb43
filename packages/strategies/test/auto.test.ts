import { backendSuite, runOnWorld } from "@mosaic/conformance";
import { masks, MultiAxisAttention, OptionError, randn } from "@mosaic/core";
import { profiles } from "@mosaic/planner";
import { expect, test } from "vitest";
import { auto, type PlanOptions } from "../src/plan/index.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

const call = { tokens: 8192, numHeads: 4, numKvHeads: 2, headDim: 32, mask: masks.causal(), gpusPerNode: 4 } as const;

// A ring in a ring, a grid with two channels: any choice must give correct results.
const planChoices: readonly PlanOptions[] = [
  { ...call, nodes: 2, gpusPerNode: 2, profile: "a100-ib200" },
  { ...call, tokens: 131_072, numKvHeads: 4, nodes: 2, gpusPerNode: 2, profile: "a100-ib200" },
];

const arrangements = planChoices.map((options) => {
  const backend = auto(options);
  return { mesh: backend.meshFor(4), axes: backend.axes, backend };
});

test("auto chooses different strategies for different calls and machines", () => {
  expect(new Set(arrangements.map(({ backend }) => backend.plan.best.name)).size).toBe(planChoices.length);
});

register(backendSuite({ makeWorld, arrangements, dtypes: ["float32"] }));

test("auto reports its choice, the reason and the number of alternatives", () => {
  const strategy = auto({ ...call, profile: "h100-ib400" });
  const { best, ranking } = strategy.plan;
  expect(strategy.name).toBe("auto");
  expect(strategy.axes).toEqual(best.strategy.axes);
  const [firstLine, ...remainingLines] = strategy.explanation.split("\n");
  expect(firstLine).toMatch(
    new RegExp(`^auto chose ${best.name} on \\{ .* \\}: .* per step, .* predicted for h100-ib400\\.$`),
  );
  expect(remainingLines.at(-1)).toBe(`${ranking.length} strategies were compared.`);
  expect(remainingLines.length).toBeGreaterThan(2);
  expect(remainingLines[0]).toMatch(/ on \{ .* \}: .* \(.* %.*\), .* sent, .* held\.$/);
});

test("auto depends on the profile and makes the same choice for equal profiles", () => {
  const slowProfile = {
    ...profiles["h100-ib400"],
    links: { ...profiles["h100-ib400"].links, "intra-node": profiles["cpu-local"].links["inter-node"] },
  };
  const explainFor = (profile: PlanOptions["profile"]) => auto({ ...call, profile: profile! }).explanation;
  expect(explainFor(slowProfile)).toBe(explainFor(structuredClone(slowProfile)));
  expect(explainFor(slowProfile)).not.toBe(explainFor("h100-ib400"));
});

test("a module accepts auto as its backend, on the mesh that meshFor returns", async () => {
  const strategy = auto({ ...call, profile: "h100-ib400" });
  await runOnWorld(makeWorld, { size: 4, mesh: strategy.meshFor(4) }, async (ctx) => {
    const options = { embedDim: 16, numHeads: 4, attentionAxis: 1, causal: true, placement: "zigzag" } as const;
    using attn = new MultiAxisAttention(ctx, { ...options, backend: strategy });
    using x = randn(ctx, [1, 8, 16]);
    using out = attn.forward(x);
    expect((await out.read()).every(Number.isFinite)).toBe(true);
  });
});

test("auto rejects another mesh before anything is sent and names the mesh to pass to init", async () => {
  const strategy = auto({ ...call, nodes: 2, gpusPerNode: 2, mesh: { node: 2, gpu: 2 }, profile: "h100-ib400" });
  expect(strategy.meshFor(4)).toEqual({ node: 2, gpu: 2 });
  expect(() => strategy.meshFor(8)).toThrow(/4 ranks, as in the plan, received 8/);
  for (const mesh of [{ sp: 4 }, { gpu: 2, node: 2 }]) {
    await runOnWorld(makeWorld, { size: 4, mesh }, async (ctx) => {
      const options = { embedDim: 16, numHeads: 4, attentionAxis: 1, backend: strategy } as const;
      expect(() => new MultiAxisAttention(ctx, options)).toThrow(OptionError);
      expect(() => new MultiAxisAttention(ctx, options)).toThrow("init({ mesh: { node: 2, gpu: 2 } })");
      expect(ctx.world.traffic().messagesSent).toBe(0);
    });
  }
});
