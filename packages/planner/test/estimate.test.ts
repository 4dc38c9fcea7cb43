import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import { type AttentionBackend, type Coordinate, masks, zigzag } from "@mosaic/core";
import { expect, test } from "vitest";
import { estimate, predict, type Profile, profiles } from "../src/index.ts";
import { gatheringBackend } from "./gathering.ts";
import { profileWithLink } from "./time/toy.ts";

const call = { tokens: 65_536, numHeads: 16, numKvHeads: 8, headDim: 128, mask: masks.causal(), placement: zigzag() };
const arrangements: readonly (readonly [string, AttentionBackend, Coordinate])[] = [
  ["ring", ring(), { sp: 16 }],
  ["mesh2d, overlapped", mesh2d({ shape: [4, 4], schedule: "overlapped" }), { sp: 16 }],
  ["mesh2d, fused", mesh2d({ shape: [4, 4], schedule: "fused" }), { sp: 16 }],
  ["ulysses × ring", ulysses({ axis: "head", inner: ring({ axis: "seq" }) }), { seq: 4, head: 4 }],
  ["ring × ring", ring({ axis: "node", inner: ring({ axis: "gpu" }) }), { node: 2, gpu: 8 }],
];

test.each(arrangements)(
  "%s: the estimate is within 5 % of the simulation of all ranks if their work is equal",
  (_, backend, mesh) => {
    for (const profile of [profiles["h100-ib400"], profiles["a100-ib200"]]) {
      const simulated = predict({ ...call, backend, mesh }, profile, { keep: () => false });
      const estimated = estimate({ ...call, backend, mesh }, profile);
      expect(Math.abs(estimated.seconds / simulated.seconds - 1)).toBeLessThan(0.05);
      expect(Math.abs(estimated.forwardSeconds / simulated.forwardSeconds - 1)).toBeLessThan(0.05);
      expect(estimated.sent).toEqual(simulated.sent);
      expect(estimated.peakBytes).toBe(simulated.peakBytes);
    }
  },
);

test.each<[string, Profile, number]>([
  [
    "whose host takes longer than kernels and transfers",
    { ...profileWithLink({ bandwidth: 1e30 }), enqueue: 100 },
    100,
  ],
  ["with shared links in both directions", profileWithLink({ duplex: false }), 1],
  ["whose ranks share one link", { ...profileWithLink({ sharedBy: 16 }), ranksPerNode: 4 }, 1],
  ["with fewer cores than ranks", { ...profileWithLink({ bandwidth: 1e30 }), cores: { perNode: 1, wait: 0 } }, 1],
  ["with inefficient cores", { ...profileWithLink({ bandwidth: 1e30 }), cores: { perNode: 8, efficiency: 0.125 } }, 1],
  ["with a cost of each wait", { ...profileWithLink({ bandwidth: 1e30 }), cores: { perNode: 8, wait: 10 } }, 1],
  ["with a cost of each step", { ...profileWithLink({ bandwidth: 1e30 }), stepOverhead: 2000 }, 100],
])("the estimate equals the simulation on a machine %s", (_, profile, secondsPerOperation) => {
  const toyCall = { backend: ring(), mesh: { sp: 4 }, tokens: 32, numHeads: 1, headDim: 4, dtype: "float32" } as const;
  const simulated = predict(toyCall, profile, { keep: () => false });
  const estimated = estimate(toyCall, profile);
  // Kernels take a few seconds.
  expect(simulated.seconds).toBeGreaterThan(20 * secondsPerOperation);
  expect(Math.abs(estimated.seconds / simulated.seconds - 1)).toBeLessThan(0.05);
});

test("estimate accepts a list of ranks and supports collectives", () => {
  const backend = gatheringBackend();
  const estimated = estimate({ ...call, tokens: 4096, backend, mesh: { sp: 4 } }, profiles["h100-ib400"], [1]);
  expect(estimated.seconds).toBeGreaterThan(0);
  expect(estimated.exposedCommunicationSeconds).toBeGreaterThan(0);
  expect(estimated.sent["intra-node"].bytes).toBeGreaterThan(0);
  expect(() => estimate({ ...call, backend, mesh: { sp: 4 } }, profiles["h100-ib400"], [])).toThrow(
    "estimate: ranks: expected at least one rank, received []",
  );
});
