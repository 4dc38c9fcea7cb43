import { masks, OptionError } from "@mosaic/core";
import { expect, test } from "vitest";
import { plan, type PlanOptions } from "../src/plan/index.ts";

const call = {
  numHeads: 32,
  numKvHeads: 8,
  headDim: 128,
  gpusPerNode: 8,
  profile: "h100-ib400",
  mask: masks.causal(),
} as const;

function getPlanError(options: PlanOptions): OptionError {
  try {
    plan(options);
  } catch (error) {
    expect(error).toBeInstanceOf(OptionError);
    return error as OptionError;
  }
  throw new Error("it was planned");
}

test("plan rejects more than 65 536 ranks in less than a second", () => {
  const start = performance.now();
  const { message } = getPlanError({ ...call, tokens: 1_048_576, nodes: 1e6 });
  expect(performance.now() - start).toBeLessThan(1000);
  expect(message).toContain("expected at most 65536 ranks, 8192 nodes of 8 ranks, received 1000000 nodes of 8 ranks");
  expect(message).toContain("dp");
});

test("plan rejects unequal shares on more than 1 024 ranks", () => {
  const { message } = getPlanError({ ...call, tokens: 524_288, nodes: 256, placement: "contiguous" });
  expect(message).toContain("expected a strategy that runs");
  expect(message).toContain("expected at most 1024 equivalence classes of ranks");
  expect(message).toContain("causal() with zigzag()");
}, 60_000);

test("plan uses equivalence classes for 256 nodes of 8 GPUs", () => {
  const { best, prediction, ranking, job } = plan({ ...call, tokens: 524_288, nodes: 256 });
  expect(job.ranks).toBe(2048);
  expect(best.evaluatedBy).toBe("simulation");
  expect(prediction.record.ranks.length).toBeLessThanOrEqual(64);
  expect(ranking.length).toBeGreaterThan(10);
}, 120_000);
