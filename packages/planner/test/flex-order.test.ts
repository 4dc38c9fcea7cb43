import { flex, type FlexOptions } from "@mosaic/backend-flex";
import { masks } from "@mosaic/core";
import { expect, test } from "vitest";
import { record } from "../src/index.ts";

/** Returns what rank 1 of 4 does, in order: what it posts, waits for, and computes. */
function listSteps(options: FlexOptions): string {
  const attentionRecord = record({
    backend: flex(options),
    mesh: { sp: 4 },
    tokens: 64,
    numHeads: 2,
    headDim: 4,
    mask: masks.full(),
  });
  const steps: string[] = [];
  const event = attentionRecord.ranks[1]!.tape.read();
  while (event.next()) {
    if (event.op === "mark") steps.push(`${attentionRecord.interned.strings[event.arg(0)]}:`);
    else if (event.op === "groupCast" || event.op === "groupReduce") steps.push("post");
    else if (event.op === "wait") steps.push("wait");
    else if (event.op === "attend" || event.op === "attendBackward") steps.push("compute");
  }
  return steps.join(" ");
}

test("two stages are posted before the own rows compute, and gradients return while the next stage computes", () => {
  // The last gradients return while a second part of the own rows is computed.
  const slowKernels = { flops: 1e6, backwardFlops: 1e6, halfSpeedKeys: 0, backwardHalfSpeedKeys: 0, launch: 0 };
  expect(listSteps({ stages: 2, cost: { latency: 0, bandwidth: 1e6, ...slowKernels } })).toBe(
    "forward: post post compute wait compute wait compute " +
      "backward: post post compute wait compute post wait compute wait post compute wait end:",
  );
});

test("a further stage is posted as soon as the buffer of the last but one stage before it is free", () => {
  expect(listSteps({ stages: 4 })).toMatch(
    /^forward: post post compute wait compute post wait compute post wait compute wait compute backward: post post compute /,
  );
});

test("a rank's own rows are not split if the transfers take longer than their computation", () => {
  expect(listSteps({ stages: 1, cost: { latency: 0, bandwidth: 1e6, flops: 1e15, launch: 0 } })).toBe(
    "forward: post compute wait compute backward: post compute wait compute post wait end:",
  );
});

test("with no stages, everything is computed at once after all rows have arrived", () => {
  expect(listSteps({ stages: 0 })).toBe("forward: post wait compute backward: post wait compute post wait end:");
});
